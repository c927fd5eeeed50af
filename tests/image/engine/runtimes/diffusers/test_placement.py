"""The placement of weights, and the number of images that fit next to them."""

from __future__ import annotations

import pytest

from services.image.engine.messages import EngineOptions, Sizes
from tests.late import late

placement = late("services.image.engine.runtimes.diffusers.placement")
torch = late("torch")

GIB = 1024**3


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (20 * GIB, "NOTHING"),
        (10 * GIB, "NOTHING"),
        (10 * GIB - 1, "MODELS"),
        (6 * GIB, "MODELS"),
        (6 * GIB - 1, "LAYERS"),
        (0, "LAYERS"),
    ],
)
def test_only_as_much_as_needed_leaves_the_gpu(room: int, expected: str) -> None:
    assert placement.choose_offload([5 * GIB, 3 * GIB, GIB], GIB, room) is placement.Offload[expected]


def options(**changed: object) -> EngineOptions:
    return EngineOptions(**{"model_id": "m", "path": "", "threads": 1, "gpu": False, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpu", "transformer", "dtype", "expected"),
    [
        (False, False, "auto", "float32"),
        (False, True, "auto", "float32"),
        (True, False, "auto", "float16"),
        (True, True, "auto", "bfloat16"),
        (True, True, "float32", "float32"),
    ],
)
def test_precision_follows_device_and_family(gpu: bool, transformer: bool, dtype: str, expected: str) -> None:
    assert placement.dtype_of(options(gpu=gpu, dtype=dtype), transformer) is getattr(torch, expected)


class Network:
    """A stand-in for a pipeline, with weights only."""

    def __init__(self) -> None:
        self.components = {"unet": torch.nn.Linear(4, 4), "scheduler": object()}


def batch(side: int, wanted: int = 0) -> int:
    sizes = Sizes(width=side, height=side, multiple_of=8, min_side=8, max_side=2048, max_pixels=2048**2)
    return placement.Placement(Network(), torch.device("cpu"), torch.float32, sizes, wanted).batch_images


def test_on_a_cpu_large_images_are_made_one_by_one_and_small_ones_together() -> None:
    assert batch(1024) == 1
    assert batch(512) == 1
    assert 1 <= batch(256) <= 4
    assert batch(64) == 16
    assert batch(1024, wanted=7) == 7
