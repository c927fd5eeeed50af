"""The base pipeline of a single-file checkpoint: small files only, of the same kind and size of pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.errors import ModelInvalid
from services.models.formats.base_pipeline import inspect_base
from services.models.formats.original_layout import layout_of
from services.models.formats.safetensors_header import Tensor
from tests.models.formats.handmade_models import local, write_json, write_pipeline
from tests.models.formats.test_original_layout import ATTENTION, PLAIN, SD1, tensors

FOUND = tensors(SD1, unet=PLAIN) | {ATTENTION: Tensor("F16", 2, (320, 768))}
SIZES = {"in_channels": 4, "block_out_channels": [320, 640], "cross_attention_dim": 768}


def base(folder: Path, **unet: Any) -> list[str]:
    """Writes a pipeline and returns the paths that the inspection takes."""
    write_pipeline(folder)
    write_json(folder / "unet" / "config.json", SIZES | unet)
    return taken(folder)


def taken(folder: Path) -> list[str]:
    return [file.path for file in inspect_base(local(folder), layout_of(FOUND, "x"), FOUND).files]


def refused(folder: Path) -> str:
    with pytest.raises(ModelInvalid) as caught:
        taken(folder)
    return caught.value.message


def change(folder: Path, **entries: Any) -> None:
    path = folder / "model_index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_configuration_and_tokenizers_are_taken_and_weights_are_not(tmp_path: Path) -> None:
    assert base(tmp_path) == [
        "model_index.json",
        "scheduler/scheduler_config.json",
        "text_encoder/config.json",
        "tokenizer/merges.txt",
        "tokenizer/vocab.json",
        "unet/config.json",
        "vae/config.json",
    ]


def test_it_need_not_have_weights_at_all(tmp_path: Path) -> None:
    whole = base(tmp_path)
    for path in tmp_path.rglob("*.safetensors"):
        path.unlink()
    change(tmp_path, safety_checker=["stable_diffusion", "StableDiffusionSafetyChecker"])
    assert taken(tmp_path) == whole, "what a single file never has is not asked for"


def test_another_kind_of_pipeline_is_refused(tmp_path: Path) -> None:
    base(tmp_path)
    change(tmp_path, _class_name="FluxPipeline")
    what = "is a FluxPipeline; the base of a checkpoint of Stable Diffusion 1.x must be a StableDiffusionPipeline"
    assert what in refused(tmp_path)


@pytest.mark.parametrize(
    ("unet", "what"),
    [
        ({"cross_attention_dim": 1024}, "cross_attention_dim in unet/config.json is 1024, here it is 768"),
        ({"in_channels": 9}, "in_channels in unet/config.json is 9, here it is 4"),
        ({"block_out_channels": [64, 128]}, "block_out_channels in unet/config.json is 64, here it is 320"),
    ],
)
def test_one_of_other_sizes_is_refused(tmp_path: Path, unet: dict[str, Any], what: str) -> None:
    with pytest.raises(ModelInvalid, match=what):
        base(tmp_path, **unet)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    base(tmp_path)
    (tmp_path / "vae" / "config.json").unlink()
    (tmp_path / "tokenizer" / "vocab.json").unlink()
    message = refused(tmp_path)
    assert "vae/config.json" in message
    assert "tokenizer/vocab.json" in message
    (tmp_path / "model_index.json").unlink()
    assert "model_index.json is missing" in refused(tmp_path)


def test_a_component_that_the_checkpoint_cannot_have_is_refused(tmp_path: Path) -> None:
    base(tmp_path)
    change(tmp_path, text_encoder_2=["transformers", "CLIPTextModel"])
    assert "has a text_encoder_2, which a checkpoint of Stable Diffusion 1.x has no weights for" in refused(tmp_path)
