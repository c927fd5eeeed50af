"""Image models of several parts on the whole stack: fetched from the hub, pinned, and used for generation.

The single-file checkpoint is shapes-sd in Stability's original layout, so its images are known.
"""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from services.models.demo.copied_demo import WEIGHTS
from tests.image.engine.lora_files import write_lora
from tests.image.engine.original_weights import write_original
from tests.late import late
from tests.loopback_hub import LoopbackHub
from tests.operator_side import Operator

diffusers = late("diffusers")
torch = late("torch")

# Each worker that imports torch and diffusers takes about ten seconds to start.
pytestmark = pytest.mark.slow

BASE = "stable-diffusion-v1-5/stable-diffusion-v1-5"  # the base that the checkpoint's header implies
STEPS = 3


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the published files: a checkpoint and a LoRA."""
    folder = tmp_path_factory.mktemp("published")
    write_original(WEIGHTS, folder / "one" / "shapes.safetensors")
    own = diffusers.StableDiffusionPipeline.from_pretrained(WEIGHTS, dtype=torch.float32, local_files_only=True)
    write_lora(own, folder / "lora" / "style.safetensors")
    return folder


@pytest.fixture(scope="module")
def image_operator(session_hub: LoopbackHub, files: Path, breakable: Operator) -> Iterator[Operator]:
    session_hub.add("org/one", files / "one")
    session_hub.add("org/style", files / "lora")
    session_hub.add(BASE, WEIGHTS)
    shutil.copytree(WEIGHTS, breakable.root / "folder")
    yield breakable
    for model in ("folder", "one"):
        breakable.delete(model)


def drawn(operator: Operator, model: str, **more: object) -> Image.Image:
    """Generates an image with the model's defaults, overridden by `more`."""
    body = {"model": model, "prompt": "a red circle on a blue background", "seed": 7, **more}
    reply = operator.call("POST", "/v1/images/generations", body)
    assert reply.status == 200, (reply.body, operator.stack.output())
    image = Image.open(io.BytesIO(base64.b64decode(reply.json["data"][0]["b64_json"])))
    image.load()
    return image


def pixels(image: Image.Image) -> str:
    return hashlib.sha256(np.asarray(image).tobytes()).hexdigest()


def test_parts_from_the_hub_draw_as_the_folder_does(image_operator: Operator, session_hub: LoopbackHub) -> None:
    operator, hub = image_operator, session_hub
    hub.requests.clear()
    defaults = {"steps": STEPS, "guidance": 2.5}
    taken = operator.taken("folder", operator.root / "folder", "diffusers", image_defaults=defaults)
    assert taken["image_defaults"] == defaults
    style = {"source": "hf://org/style#style.safetensors", "scale": 0.8}
    one = "hf://org/one#shapes.safetensors"
    taken = operator.taken("one", one, "diffusers", image_defaults=defaults, loras=[style])
    assert (taken["architecture"], taken["base"]) == ("StableDiffusionPipeline", f"hf://{BASE}")
    assert [lora["scale"] for lora in taken["loras"]] == [0.8]
    for model in ("folder", "one"):
        operator.until_state(model, "ready", "loaded")
    folder = drawn(operator, "folder")
    assert (folder.text["Steps"], folder.text["Guidance"]) == (str(STEPS), "2.5")
    assert pixels(drawn(operator, "one")) != pixels(folder), "the LoRA shows"
    asked = {request.file for request in hub.requests}
    assert "tokenizer/tokenizer.json" in asked
    assert not [name for name in asked if name.endswith("diffusion_pytorch_model.safetensors")], (
        "no weights of the base"
    )
    # The removal of a LoRA keeps the model's own files.
    fetched = len(hub.asked("shapes.safetensors", cdn=True))
    assert operator.verb("one", "update", {"loras": {"loras": []}}).status == 200
    operator.until(lambda: all(replica["generation"] == 2 for replica in operator.all()["one"]["replicas"]))
    assert pixels(drawn(operator, "one")) == pixels(folder)
    again = hub.asked("shapes.safetensors", cdn=True)[fetched:]
    assert all(request.range for request in again), "only its header was looked at again"


def test_a_lora_of_another_model_is_refused_at_once(image_operator: Operator, files: Path) -> None:
    wrong = {"source": "hf://org/one#shapes.safetensors"}
    message = image_operator.refused("m", image_operator.root / "folder", "diffusers", loras=[wrong])
    assert "shapes.safetensors is not a LoRA" in message
