"""model_index.json: supported pipelines run, and others are refused before any import for them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from services.worker.messages import EngineError
from tests.late import late

diffusers_index = late("services.image.engine.runtimes.diffusers.index")

INDEX = {
    "_class_name": "StableDiffusionPipeline",
    "_diffusers_version": "0.42.1",
    "requires_safety_checker": False,
    "feature_extractor": [None, None],
    "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "unet": ["diffusers", "UNet2DConditionModel"],
}


def written(folder: Path, **changed: object) -> Path:
    (folder / "model_index.json").write_text(json.dumps({**INDEX, **changed}))
    return folder


def refusal(folder: Path) -> EngineError:
    with pytest.raises(EngineError) as refused:
        diffusers_index.read_index(folder)
    return refused.value


def test_components_and_class_are_read(tmp_path: Path) -> None:
    index = diffusers_index.read_index(written(tmp_path))
    assert index.pipeline == "StableDiffusionPipeline"
    assert set(index.components) == {"safety_checker", "text_encoder", "unet"}


@pytest.mark.parametrize(
    "changed",
    [
        {"_class_name": ["pipeline", "MyPipeline"]},
        {"_class_name": "MyPipeline"},
        {"_class_name": "UNet2DConditionModel"},
        {"_class_name": "__version__"},
        {"_class_name": None},
        {"unet": ["my_unet", "MyUNet"]},
        {"unet": ["this", "Zen"]},
        {"unet": ["os.path", "join"]},
        {"unet": ["diffusers", "utils.logging"]},
    ],
    ids=str,
)
def test_code_of_others_is_refused_and_not_imported(tmp_path: Path, changed: dict) -> None:
    (tmp_path / "pipeline.py").write_text("raise SystemExit")
    assert refusal(written(tmp_path, **changed)).code == "UNSUPPORTED"
    assert "this" not in sys.modules


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, " " * 2_000_000])
def test_invalid_index_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "model_index.json").write_text(text)
    assert refusal(tmp_path).code == "MODEL_INVALID"


def test_missing_index_is_reported(tmp_path: Path) -> None:
    assert refusal(tmp_path).code == "MODEL_INVALID"


@pytest.mark.parametrize(
    ("names", "variant"),
    [
        (["diffusion_pytorch_model.safetensors"], None),
        (["diffusion_pytorch_model.fp16.safetensors"], "fp16"),
        (["diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.fp16.safetensors"], None),
        (["diffusion_pytorch_model.safetensors.index.fp16.json"], "fp16"),
        ([], None),
    ],
)
def test_half_precision_is_the_fallback(tmp_path: Path, names: list[str], variant: str | None) -> None:
    (tmp_path / "unet").mkdir()
    for name in names:
        (tmp_path / "unet" / name).touch()
    assert diffusers_index.read_index(written(tmp_path)).variant == variant
