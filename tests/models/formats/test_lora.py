"""LoRAs: pairs of small matrices, and their match with a model's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from services.errors import ModelInvalid
from services.models.formats.lora import LoraFile, check_fit, inspect_lora
from services.models.formats.safetensors_header import Tensor
from tests.models.formats.handmade_models import local, safetensors

KEYS = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k"
QUERIES = "encoder.layers.0.self_attn.q_proj"
MODEL = {
    "unet": {f"{KEYS}.weight": Tensor("F16", 2, (320, 768)), "conv_in.bias": Tensor("F16", 2, (320,))},
    "text_encoder": {f"{QUERIES}.weight": Tensor("F16", 2, (768, 768))},
}
SINGLE = {"": {"model.diffusion_model.input_blocks.1.1.x.attn2.to_k.weight": Tensor("F16", 2, (320, 768))}}
NAMES = {
    "diffusers": (f"unet.{KEYS}.lora_A.weight", f"unet.{KEYS}.lora_B.weight"),
    "older diffusers": (f"unet.{KEYS}.lora.down.weight", f"unet.{KEYS}.lora.up.weight"),
    "oldest diffusers": (
        f"unet.{KEYS.replace('.to_k', '.processor.to_k')}_lora.down.weight",
        f"unet.{KEYS.replace('.to_k', '.processor.to_k')}_lora.up.weight",
    ),
    "kohya": (
        f"lora_unet_{KEYS.replace('.', '_')}.lora_down.weight",
        f"lora_unet_{KEYS.replace('.', '_')}.lora_up.weight",
    ),
    "text encoder": (
        f"text_encoder.text_model.{QUERIES}.lora_linear_layer.down.weight",
        f"text_encoder.text_model.{QUERIES}.lora_linear_layer.up.weight",
    ),
}
every_name = pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)


def pair(names: tuple[str, str], inputs: int, outputs: int, ranks: tuple[int, int] = (4, 4)) -> dict[str, list[int]]:
    return {names[0]: [ranks[0], inputs], names[1]: [outputs, ranks[1]]}


def written(folder: Path, tensors: Mapping[str, Sequence[int]], name: str = "l.safetensors") -> LoraFile:
    (folder / name).write_bytes(safetensors({each: ("F16", shape) for each, shape in tensors.items()}))
    return inspect_lora(local(folder), name)


def refused(folder: Path, tensors: Mapping[str, Sequence[int]]) -> str:
    with pytest.raises(ModelInvalid) as caught:
        check_fit(written(folder, tensors), MODEL)
    assert caught.value.message.startswith("l.safetensors"), "the file is named"
    return caught.value.message


@every_name
def test_every_way_of_naming_is_known(tmp_path: Path, names: tuple[str, str]) -> None:
    outputs = 768 if "text_model" in names[0] else 320
    lora = written(tmp_path, pair(names, 768, outputs) | {"alpha": [1]})
    check_fit(lora, MODEL)
    assert (lora.manifest.primary, len(lora.changes)) == ("l.safetensors", 1)


@every_name
def test_a_lora_for_matrices_of_another_size_is_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    assert "was made for another model" in refused(tmp_path, pair(names, 2048, 320))
    assert "changes a 640x768 matrix, which is" in refused(tmp_path, pair(names, 768, 640))


def test_a_lora_for_missing_matrices_is_refused(tmp_path: Path) -> None:
    there, absent = NAMES["diffusers"], ("unet.x.lora_A.weight", "unet.x.lora_B.weight")
    message = refused(tmp_path, pair(there, 768, 320) | pair(absent, 768, 320))
    assert "1 of its 2 matrices are not in this one, such as unet.x" in message
    flux = ("transformer.single_transformer_blocks.0.attn.to_q.lora_A.weight",) * 2
    flux = (flux[0], flux[1].replace("lora_A", "lora_B"))
    assert "1 of its 1 matrices are not in this one" in refused(tmp_path, pair(flux, 3072, 3072))


def test_single_file_checkpoint_is_compared_by_prompt_width(tmp_path: Path) -> None:
    check_fit(written(tmp_path, pair(NAMES["diffusers"], 768, 320)), SINGLE)
    with pytest.raises(ModelInvalid, match="expects prompt embeddings of width 2048, this model has 768"):
        check_fit(written(tmp_path, pair(NAMES["kohya"], 2048, 320)), SINGLE)


def test_ranks_that_disagree_are_refused(tmp_path: Path) -> None:
    message = refused(tmp_path, pair(NAMES["diffusers"], 768, 320, ranks=(4, 8)))
    assert "has rank 4, its counterpart 8" in message


def test_non_lora_file_is_refused_with_its_kind(tmp_path: Path) -> None:
    assert "has no pairs of small matrices" in refused(tmp_path, {"unet.weight": [2, 2]})
    assert "has no counterpart" in refused(tmp_path, {NAMES["diffusers"][0]: [4, 768]})
    assert "contains LoHa" in refused(tmp_path, {"lora_unet_x.hada_w1_a": [4, 4]})
    assert "contains DoRA" in refused(tmp_path, pair(NAMES["kohya"], 768, 320) | {"lora_unet_x.dora_scale": [320, 1]})


def test_which_file_is_meant_must_be_clear(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match=r"has no \.safetensors file"):
        inspect_lora(local(tmp_path), "")
    written(tmp_path, pair(NAMES["diffusers"], 768, 320), "a.safetensors")
    assert inspect_lora(local(tmp_path), "").manifest.primary == "a.safetensors"
    written(tmp_path, pair(NAMES["diffusers"], 768, 320), "b.safetensors")
    with pytest.raises(ModelInvalid, match=r"several files: name one of a\.safetensors, b\.safetensors"):
        inspect_lora(local(tmp_path), "")
    with pytest.raises(ModelInvalid, match=r"c\.safetensors is missing"):
        inspect_lora(local(tmp_path), "c.safetensors")
    (tmp_path / "d.bin").write_bytes(b"x")
    with pytest.raises(ModelInvalid, match=r"a LoRA is a \.safetensors file"):
        inspect_lora(local(tmp_path), "d.bin")
