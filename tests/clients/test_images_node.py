"""Images with the official npm `openai` SDK, and with gRPC for Node, which shows every step.

The tests themselves are in images.test.mjs and images-grpc.test.mjs.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.clients.node import run_node_tests
from tests.stack import IMAGE_MODEL, MODEL, Stack

PROTOS = Path(__file__).parents[2] / "protos"
SIDE = 64  # width and height that the model draws

pytestmark = pytest.mark.slow  # the first of them waits for torch


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An image, a mask whose left half is transparent, and a mask that is too small for it."""
    folder = tmp_path_factory.mktemp("pictures")
    Image.new("RGB", (SIDE, SIDE), (35, 75, 220)).save(folder / "image.png")
    mask = Image.new("RGBA", (SIDE, SIDE), (0, 0, 0, 255))
    mask.paste((0, 0, 0, 0), (0, 0, SIDE // 2, SIDE))
    mask.save(folder / "mask.png")
    mask.resize((SIDE // 2, SIDE // 2)).save(folder / "small.png")
    return {
        "ALLM_SIDE": str(SIDE),
        "ALLM_IMAGE": str(folder / "image.png"),
        "ALLM_MASK": str(folder / "mask.png"),
        "ALLM_SMALL_MASK": str(folder / "small.png"),
    }


def test_openai_sdk_generates_images(stack: Stack, files: dict[str, str]) -> None:
    run_node_tests(
        "images.test.mjs", ALLM_BASE_URL=stack.base_url, ALLM_MODEL=IMAGE_MODEL, ALLM_TEXT_MODEL=MODEL, **files
    )


def test_grpc_shows_every_step(stack: Stack, files: dict[str, str]) -> None:
    run_node_tests(
        "images-grpc.test.mjs",
        ALLM_GRPC=stack.grpc_address,
        ALLM_METRICS=stack.note["metrics"]["image"],
        ALLM_MODEL=IMAGE_MODEL,
        ALLM_PROTOS=str(PROTOS),
        **files,
    )
