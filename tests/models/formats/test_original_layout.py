"""Single-file image checkpoints: identified by the names and shapes in their header."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from services.errors import AllmError, ModelInvalid, Unsupported
from services.models.formats.inspect import inspect
from services.models.formats.original_layout import layout_of
from services.models.formats.safetensors_header import Tensor
from tests.case import case
from tests.models.formats.handmade_models import local, paths, refusal, safetensors, write_pipeline, write_text_model

PREFIX = "model.diffusion_model."
CLIP = "transformer.text_model.embeddings.position_embedding.weight"
ATTENTION = f"{PREFIX}input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight"
VAE = "first_stage_model.decoder.conv_in.weight"
SD1 = [VAE, f"cond_stage_model.{CLIP}"]
SD2 = [VAE, "cond_stage_model.model.token_embedding.weight"]
XL = [VAE, f"conditioner.embedders.0.{CLIP}", "conditioner.embedders.1.model.positional_embedding"]
REFINER = [VAE, "conditioner.embedders.0.model.text_projection"]
ENCODERS = [f"text_encoders.clip_l.{CLIP}", f"text_encoders.clip_g.{CLIP}"]
T5 = "text_encoders.t5xxl.transformer.shared.weight"
SD3 = [f"{PREFIX}joint_blocks.0.context_block.adaLN_modulation.1.bias", VAE, *ENCODERS]
FLUX = ["double_blocks.0.img_attn.norm.key_norm.scale", "vae.decoder.conv_in.weight", ENCODERS[0], T5]
DEV = [*FLUX, "guidance_in.in_layer.bias"]


def tensors(names: Iterable[str], **shapes: tuple[int, ...]) -> dict[str, Tensor]:
    """Returns a header's tensors; `unet` and `img_in` are the shapes of the tensors of those names, if given."""
    found = {name: Tensor("F16", 2, (1,)) for name in names}
    if "unet" in shapes:
        found[f"{PREFIX}input_blocks.0.0.weight"] = Tensor("F16", 2, shapes["unet"])
    if "img_in" in shapes:
        found["img_in.weight"] = Tensor("F16", 2, shapes["img_in"])
    return found


PLAIN, MASKED = (320, 4, 3, 3), (320, 9, 3, 3)


def test_detected_layouts() -> None:
    for found, architecture, base in [
        (tensors(SD1, unet=PLAIN), "StableDiffusionPipeline", "stable-diffusion-v1-5/stable-diffusion-v1-5"),
        (
            tensors(SD1, unet=MASKED),
            "StableDiffusionInpaintPipeline",
            "stable-diffusion-v1-5/stable-diffusion-inpainting",
        ),
        (tensors(SD2, unet=PLAIN), "StableDiffusionPipeline", "stabilityai/stable-diffusion-2-1"),
        (tensors(SD2, unet=MASKED), "StableDiffusionInpaintPipeline", "stabilityai/stable-diffusion-2-inpainting"),
        (tensors(XL, unet=PLAIN), "StableDiffusionXLPipeline", "stabilityai/stable-diffusion-xl-base-1.0"),
        (
            tensors(XL, unet=MASKED),
            "StableDiffusionXLInpaintPipeline",
            "diffusers/stable-diffusion-xl-1.0-inpainting-0.1",
        ),
        (
            tensors([*XL, "edm_mean"], unet=PLAIN),
            "StableDiffusionXLPipeline",
            "playgroundai/playground-v2.5-1024px-aesthetic",
        ),
        (
            tensors(REFINER, unet=PLAIN),
            "StableDiffusionXLImg2ImgPipeline",
            "stabilityai/stable-diffusion-xl-refiner-1.0",
        ),
        (tensors(SD3), "StableDiffusion3Pipeline", "stabilityai/stable-diffusion-3-medium-diffusers"),
        (
            tensors([*SD3, f"{PREFIX}joint_blocks.0.x_block.attn2.qkv.weight"]),
            "StableDiffusion3Pipeline",
            "stabilityai/stable-diffusion-3.5-medium",
        ),
        (
            tensors([*SD3, T5, f"{PREFIX}joint_blocks.37.x_block.mlp.fc1.weight"]),
            "StableDiffusion3Pipeline",
            "stabilityai/stable-diffusion-3.5-large",
        ),
        (tensors(FLUX), "FluxPipeline", "black-forest-labs/FLUX.1-schnell"),
        (tensors(DEV, img_in=(3072, 64)), "FluxPipeline", "black-forest-labs/FLUX.1-dev"),
        (tensors(DEV, img_in=(3072, 384)), "FluxFillPipeline", "black-forest-labs/FLUX.1-Fill-dev"),
        (tensors(DEV, img_in=(3072, 128)), "FluxControlPipeline", "black-forest-labs/FLUX.1-Depth-dev"),
    ]:
        with case(found=found, architecture=architecture, base=base):
            layout = layout_of(found, "x.safetensors")
            assert (layout.architecture, layout.base) == (architecture, base)


def said(found: dict[str, Tensor], kind: type[AllmError]) -> str:
    with pytest.raises(kind) as caught:
        layout_of(found, "x.safetensors")
    assert "x.safetensors" in caught.value.message, "the file is named"
    return caught.value.message


def test_partial_checkpoint_is_refused_with_the_missing_parts() -> None:
    assert "has no weights of vae, text_encoder, text_encoder_2" in said(
        tensors(FLUX[:1] + DEV[-1:], img_in=(8, 64)), ModelInvalid
    ), "as its makers published Flux"
    assert "has no weights of vae:" in said(tensors(SD1[1:], unet=PLAIN), ModelInvalid)


def test_the_largest_encoder_of_stable_diffusion_3_may_be_missing() -> None:
    without, whole = tensors(SD3), tensors([*SD3, T5])
    assert layout_of(without, "x").left_out(without) == ["text_encoder_3"]
    assert layout_of(whole, "x").left_out(whole) == []


def test_other_kinds_are_refused_by_name() -> None:
    for found, what in [
        (tensors(["control_model.input_blocks.0.0.weight", *SD1], unet=PLAIN), "is a ControlNet"),
        (tensors([*FLUX, "distilled_guidance_layer.in_proj.bias"]), "is Chroma"),
        (tensors(SD1, unet=(320, 8, 3, 3)), "has 8 latent input channels; 4 or, for inpainting, 9 are supported"),
        (tensors(SD1, unet=(320,)), "has 0 latent input channels"),
        (tensors([VAE], unet=PLAIN), "not a checkpoint in a known layout"),
        (tensors(["unet.x.lora_A.weight", "unet.x.lora_B.weight"]), "a LoRA with the model that it belongs to"),
        (tensors(DEV, img_in=(3072, 7)), "not a checkpoint in a known layout"),
    ]:
        with case(found=found, what=what):
            assert what in said(found, Unsupported)


def write_checkpoint(path: Path) -> None:
    shapes = {f"{PREFIX}input_blocks.0.0.weight": ("F16", PLAIN), ATTENTION: ("F16", (320, 768))}
    path.write_bytes(safetensors(shapes | dict.fromkeys(SD1, ("F16", (1, 768)))))


def test_named_file_is_the_model_regardless_of_other_files(tmp_path: Path) -> None:
    write_pipeline(tmp_path)
    write_checkpoint(tmp_path / "one.safetensors")
    tree = local(tmp_path)
    finding = inspect(tree, "diffusers", "one.safetensors")
    assert (finding.architecture, finding.primary, paths(finding)) == (
        "StableDiffusionPipeline",
        "one.safetensors",
        ["one.safetensors"],
    )
    assert finding.tensors[""][ATTENTION].shape == (320, 768)
    assert inspect(local(tmp_path), "diffusers").primary == "", "and without a name the folder is"


def test_invalid_single_files_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "one.safetensors")
    (tmp_path / "one.ckpt").write_bytes(b"x")
    assert "only .safetensors are supported as single files" in refusal(tmp_path, "diffusers", "one.ckpt")
    assert "two.safetensors is missing" in refusal(tmp_path, "diffusers", "two.safetensors")
    assert "is the model one file? Then name it: one.safetensors" in refusal(tmp_path, "diffusers")
    whole = (tmp_path / "one.safetensors").read_bytes()
    (tmp_path / "one.safetensors").write_bytes(whole[:-1])
    assert "is cut off" in refusal(tmp_path, "diffusers", "one.safetensors")


def test_adapter_next_to_a_component_is_refused(tmp_path: Path) -> None:
    write_pipeline(tmp_path)
    (tmp_path / "text_encoder" / "adapter_config.json").write_text(json.dumps({}))
    assert "text_encoder/adapter_config.json would change the model" in refusal(tmp_path, "diffusers")


def test_adapter_next_to_a_text_model_is_refused_too(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({}))
    assert "adapter_config.json would change the model" in refusal(tmp_path, "safetensors")
