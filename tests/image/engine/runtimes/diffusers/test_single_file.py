"""Single-file checkpoints: the same pixels as from the original folder, without downloads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from services.image.engine.messages import EngineOptions
from services.models.demo.image_demo import WEIGHTS
from services.worker.messages import EngineError
from tests.image.engine.drawing_session import Pixels, draft, made, recipe
from tests.image.engine.original_weights import write_original
from tests.late import late

diffusers_engine = late("services.image.engine.runtimes.diffusers.engine")
safetensors_torch = late("safetensors.torch")

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
PROMPT = "a red circle on a blue background"


def base_of(folder: Path, target: Path) -> Path:
    """Copies the small files of a pipeline."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors"))
    return target


def engine(path: Path, base: Path | None = None) -> diffusers_engine.DiffusersEngine:
    options = EngineOptions(model_id="m", path=str(path), base=str(base or ""), threads=1, gpu=False)
    return diffusers_engine.DiffusersEngine(options, lambda _: None)


def drawn(engine: diffusers_engine.DiffusersEngine, side: int) -> Pixels:
    chosen = recipe(engine, width=side, height=side, guidance=2.5)
    (pixels,) = made(engine, chosen, draft(7, PROMPT))
    return pixels


@pytest.mark.parametrize("family", ["shapes-sd", "StableDiffusionPipeline", "StableDiffusionXLPipeline"])
def test_the_pixels_are_those_of_the_folder(
    tmp_path: Path, folder_of: Callable[[str], Path], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, side = (WEIGHTS, 64) if family == "shapes-sd" else (folder_of(family), 32)
    one = write_original(folder, tmp_path / "one.safetensors")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens on this port
    ours, theirs = engine(one, base_of(folder, tmp_path / "base")), engine(folder)
    assert ours.ready == theirs.ready, "limits and defaults come from the same configuration"
    assert np.array_equal(drawn(ours, side), drawn(theirs, side))


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    tensors = safetensors_torch.load_file(write_original(WEIGHTS, tmp_path / "one.safetensors"))
    absent = "model.diffusion_model.middle_block.1.transformer_blocks.0.attn2.to_q.weight"
    del tensors[absent]
    safetensors_torch.save_file(tensors, tmp_path / "one.safetensors")
    with pytest.raises(EngineError) as caught:
        engine(tmp_path / "one.safetensors", base_of(WEIGHTS, tmp_path / "base"))
    assert caught.value.code == "MODEL_INVALID"
    assert "one.safetensors lacks weights that the model of" in caught.value.message


def test_a_base_of_another_size_is_refused(tmp_path: Path) -> None:
    one = write_original(WEIGHTS, tmp_path / "one.safetensors")
    config = base_of(WEIGHTS, tmp_path / "base") / "vae" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"block_out_channels": [16, 32, 32]}))
    with pytest.raises(EngineError) as caught:
        engine(one, tmp_path / "base")
    assert caught.value.code == "MODEL_INVALID"


def test_an_adapter_in_a_folder_is_refused(tmp_path: Path) -> None:
    folder = base_of(WEIGHTS, tmp_path / "base")
    (folder / "text_encoder" / "adapter_config.json").write_text("{}")
    with pytest.raises(EngineError, match=r"text_encoder/adapter_config\.json would change the model unasked"):
        engine(folder)
