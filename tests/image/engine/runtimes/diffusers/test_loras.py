"""LoRAs: the pixels match diffusers' own pipeline with the same LoRAs, and tensors that do not fit are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.image.engine.messages import EngineOptions, Lora
from services.models.demo.copied_demo import WEIGHTS
from services.worker.messages import EngineError
from tests.image.engine.lora_files import write_lora
from tests.image.engine.original_weights import write_original
from tests.image.engine.pipeline_session import Pixels, draft, furthest, made, parameters
from tests.image.engine.runtimes.diffusers.test_engine import base_of
from tests.late import late

diffusers = late("diffusers")
diffusers_engine = late("services.image.engine.runtimes.diffusers.engine")
safetensors_torch = late("safetensors.torch")
torch = late("torch")

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Already found a `peft_config`:UserWarning"),
]
PROMPT = "a red circle on a blue background"
ROUNDING = 1  # of 255: adding a product beforehand rounds differently from adding it at each call


def pipeline(folder: Path, family: str = "StableDiffusionPipeline") -> Any:
    torch.set_num_threads(1)
    own = getattr(diffusers, family).from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    own.set_progress_bar_config(disable=True)
    return own


def engine(folder: Path, *loras: tuple[Path, float], base: str = "") -> diffusers_engine.DiffusersEngine:
    added = tuple(Lora(path=str(path), scale=scale) for path, scale in loras)
    options = EngineOptions(model_id="m", path=str(folder), base=base, threads=1, gpu=False, loras=added)
    return diffusers_engine.DiffusersEngine(options, lambda _: None)


def generated(engine: diffusers_engine.DiffusersEngine, side: int) -> Pixels:
    (pixels,) = made(engine, parameters(engine, width=side, height=side, guidance=2.5), draft(7, PROMPT))
    return pixels


def directly(own: Any, side: int) -> Pixels:
    seed = torch.Generator().manual_seed(7)
    call = {"num_inference_steps": 3, "guidance_scale": 2.5, "width": side, "height": side}
    return np.asarray(own(PROMPT, generator=seed, **call).images[0])


@pytest.mark.parametrize("style", ["diffusers", "kohya"])
@pytest.mark.parametrize("family", ["shapes-sd", "StableDiffusionPipeline"])
def test_the_pixels_are_those_of_diffusers(
    tmp_path: Path, folder_of: Callable[[str], Path], family: str, style: Any
) -> None:
    folder, side = (WEIGHTS, 64) if family == "shapes-sd" else (folder_of(family), 32)
    own = pipeline(folder)
    plain = directly(own, side)
    path = write_lora(own, tmp_path / "l.safetensors", style=style)
    ours = generated(engine(folder, (path, 0.7)), side)
    own.load_lora_weights(str(tmp_path), weight_name=path.name, adapter_name="l")
    own.set_adapters(["l"], [0.7])
    assert furthest(ours, directly(own, side)) <= ROUNDING
    own.fuse_lora(components=["unet", "text_encoder"])
    assert np.array_equal(ours, directly(own, side))
    assert furthest(ours, plain) > 10, "a LoRA that changes nothing would prove nothing"


def test_several_are_added_each_as_strongly_as_it_says(tmp_path: Path) -> None:
    own = pipeline(WEIGHTS)
    one = write_lora(own, tmp_path / "one.safetensors", seed=1)
    two = write_lora(own, tmp_path / "two.safetensors", seed=2, style="kohya")
    ours = generated(engine(WEIGHTS, (one, 0.7), (two, -0.4)), 64)
    for name, path in (("x", one), ("y", two)):
        own.load_lora_weights(str(tmp_path), weight_name=path.name, adapter_name=name)
    own.set_adapters(["x", "y"], [0.7, -0.4])
    own.fuse_lora(components=["unet", "text_encoder"], adapter_names=["x", "y"])
    assert np.array_equal(ours, directly(own, 64))


def test_a_checkpoint_of_one_file_takes_them_too(tmp_path: Path) -> None:
    path = write_lora(pipeline(WEIGHTS), tmp_path / "l.safetensors")
    single = write_original(WEIGHTS, tmp_path / "one.safetensors")
    ours = engine(single, (path, 0.5), base=str(base_of(WEIGHTS, tmp_path / "base")))
    assert np.array_equal(generated(ours, 64), generated(engine(WEIGHTS, (path, 0.5)), 64))


@pytest.mark.parametrize("family", ["StableDiffusion3Pipeline", "FluxPipeline"])
def test_transformers_take_them_too(tmp_path: Path, folder_of: Callable[[str], Path], family: str) -> None:
    folder = folder_of(family)
    own = pipeline(folder, family)
    own.text_encoder = None  # the text encoder's LoRAs would have the same names; this test is about the transformer
    path = write_lora(own, tmp_path / "l.safetensors")
    plain, ours = engine(folder), engine(folder, (path, 1.0))
    assert furthest(*(made(each, parameters(each), draft(7))[0] for each in (plain, ours))) > 0


def test_mismatch_is_refused(tmp_path: Path) -> None:
    tensors = safetensors_torch.load_file(write_lora(pipeline(WEIGHTS), tmp_path / "l.safetensors"))

    def refused(changed: dict[str, torch.Tensor]) -> str:
        path = tmp_path / "wrong.safetensors"
        safetensors_torch.save_file(changed, path)
        with pytest.raises(EngineError) as caught:
            engine(WEIGHTS, (path, 1.0))
        assert caught.value.code == "MODEL_INVALID"
        return caught.value.message

    elsewhere = {name.replace("down_blocks.1", "down_blocks.7"): tensor for name, tensor in tensors.items()}
    assert "matrices fit this StableDiffusionPipeline" in refused(elsewhere)
    wide = {name: tensor.repeat(1, 2) if "attn2.to_k.lora_A" in name else tensor for name, tensor in tensors.items()}
    assert "size mismatch" in refused(wide)
    assert "NaN" in refused({name: tensor * float("nan") for name, tensor in tensors.items()})
