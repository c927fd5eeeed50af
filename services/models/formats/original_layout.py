"""Identifies single-file image checkpoints in their original layouts, by the names and shapes of their tensors.

Such a file holds only weights. This module reads its header; configuration and tokenizers come from a base, a diffusers
pipeline of the same kind (`diffusers.py`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

from services.errors import ModelInvalid, Unsupported
from services.models.formats.safetensors_header import Tensors

# Files with only the denoiser have names without this prefix.
_PREFIX = "model.diffusion_model."
_INPUT = f"{_PREFIX}input_blocks.0.0.weight"  # [channels, channels of latents, 3, 3]
_VAE = ("first_stage_model.decoder.conv_in.weight", "vae.decoder.conv_in.weight")
_POSITIONS = "transformer.text_model.embeddings.position_embedding.weight"
_PLAIN_CHANNELS, _INPAINTING_CHANNELS = 4, 9
# Other kinds of files, some of which would be mistaken for a layout below.
_OTHERS = {
    "control_model.": "a ControlNet",
    "distilled_guidance_layer.": "Chroma",
    "single_stream_modulation.lin.weight": "Flux 2",
    "motion_modules.": "AnimateDiff",
    "clip_txt_mapper.": "Stable Cascade",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A known kind of checkpoint."""

    name: str  # for messages
    architecture: str  # the class of its pipeline
    base: str  # the repository with its default configuration
    marks: Mapping[str, tuple[str, ...]] = field(repr=False)  # component -> alternative names of one of its tensors
    optional: tuple[str, ...] = ()  # components that may be absent

    def missing(self, tensors: Tensors) -> list[str]:
        """Returns the required components whose weights are not in the file."""
        return [part for part in self.marks if part not in self.optional and not self.holds(part, tensors)]

    def holds(self, component: str, tensors: Container[str]) -> bool:
        """True if the weights of a component are in the file."""
        return any(name in tensors for name in self.marks.get(component, ()))

    def left_out(self, tensors: Tensors) -> list[str]:
        """Returns the optional components whose weights are not in the file."""
        return [component for component in self.optional if not self.holds(component, tensors)]


def layout_of(tensors: Tensors, path: str) -> Layout:
    """Identifies the layout of a checkpoint with these tensors; `path` is for messages.

    Raises:
        Unsupported: the layout is unknown or not supported; says what it is.
        ModelInvalid: the file lacks weights, which a base does not provide.
    """
    for mark, what in _OTHERS.items():
        if any(mark in name for name in tensors):
            raise Unsupported(f"{path} is {what}, which cannot be read from a single file", param="source")
    layout = _stable_diffusion(tensors, path) if _INPUT in tensors else _transformer(tensors)
    if layout is None:
        known = "Stable Diffusion 1.x, 2.x, XL, 3 and 3.5, and Flux"
        raise Unsupported(
            f"{path} is not a checkpoint in a known layout, such as the original ones of {known}. "
            "Register a diffusers pipeline as a folder, and a LoRA with the model that it belongs to",
            param="source",
        )
    if absent := layout.missing(tensors):
        raise ModelInvalid(
            f"{path} ({layout.name}) has no weights of {', '.join(absent)}: a base provides only configuration and "
            "tokenizers, so all weights must be in the file"
        )
    return layout


def _stable_diffusion(tensors: Tensors, path: str) -> Layout | None:
    """Identifies a layout with a UNet."""
    shape = tensors[_INPUT].shape
    channels = shape[1] if len(shape) > 1 else 0
    if channels not in (_PLAIN_CHANNELS, _INPAINTING_CHANNELS):
        taken = f"{_PLAIN_CHANNELS} or, for inpainting, {_INPAINTING_CHANNELS}"
        raise Unsupported(f"{path} has {channels} latent input channels; {taken} are supported", param="source")
    masks = channels == _INPAINTING_CHANNELS
    if "edm_mean" in tensors:
        return _XL_PLAYGROUND
    for layout, inpainting in _UNETS:
        if layout.holds("text_encoder", tensors) or (layout is _REFINER and layout.holds("text_encoder_2", tensors)):
            return inpainting if masks else layout
    return None


def _transformer(tensors: Tensors) -> Layout | None:
    """Identifies a layout with a transformer."""
    if _SD3.holds("transformer", tensors):
        if any("joint_blocks.37." in name for name in tensors):
            return _SD35_LARGE
        return _SD35_MEDIUM if any(".x_block.attn2." in name for name in tensors) else _SD3
    if not _FLUX_SCHNELL.holds("transformer", tensors):
        return None
    if not any(f"{prefix}guidance_in.in_layer.bias" in tensors for prefix in ("", _PREFIX)):
        return _FLUX_SCHNELL
    inputs = next((tensors[name].shape for name in (f"{_PREFIX}img_in.weight", "img_in.weight") if name in tensors), ())
    return _FLUX.get(inputs[1]) if len(inputs) > 1 else None


def _either(*names: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in names for prefix in (_PREFIX, ""))


_SD1 = Layout(
    name="Stable Diffusion 1.x",
    architecture="StableDiffusionPipeline",
    base="stable-diffusion-v1-5/stable-diffusion-v1-5",
    marks={"unet": (_INPUT,), "vae": _VAE, "text_encoder": (f"cond_stage_model.{_POSITIONS}",)},
)
_SD2 = Layout(
    name="Stable Diffusion 2.x",
    architecture="StableDiffusionPipeline",
    base="stabilityai/stable-diffusion-2-1",
    marks={"unet": (_INPUT,), "vae": _VAE, "text_encoder": ("cond_stage_model.model.token_embedding.weight",)},
)
_XL = Layout(
    name="Stable Diffusion XL",
    architecture="StableDiffusionXLPipeline",
    base="stabilityai/stable-diffusion-xl-base-1.0",
    marks={
        "unet": (_INPUT,),
        "vae": _VAE,
        "text_encoder": (f"conditioner.embedders.0.{_POSITIONS}",),
        "text_encoder_2": ("conditioner.embedders.1.model.positional_embedding",),
    },
)
_XL_PLAYGROUND = replace(_XL, name="Playground 2.5", base="playgroundai/playground-v2.5-1024px-aesthetic")
_REFINER = Layout(
    name="the refiner of Stable Diffusion XL",
    architecture="StableDiffusionXLImg2ImgPipeline",
    base="stabilityai/stable-diffusion-xl-refiner-1.0",
    marks={"unet": (_INPUT,), "vae": _VAE, "text_encoder_2": ("conditioner.embedders.0.model.text_projection",)},
)


def _inpainting(layout: Layout, base: str) -> Layout:
    return replace(layout, architecture=layout.architecture.replace("Pipeline", "InpaintPipeline"), base=base)


# Layouts for 4 channels of latents and for 9 (inpainting).
_UNETS = (
    (_SD1, _inpainting(_SD1, "stable-diffusion-v1-5/stable-diffusion-inpainting")),
    (_SD2, _inpainting(_SD2, "stabilityai/stable-diffusion-2-inpainting")),
    (_XL, _inpainting(_XL, "diffusers/stable-diffusion-xl-1.0-inpainting-0.1")),
    (_REFINER, _REFINER),
)
_ENCODERS = {
    "text_encoder": (f"text_encoders.clip_l.{_POSITIONS}",),
    "text_encoder_2": (f"text_encoders.clip_g.{_POSITIONS}",),
    "text_encoder_3": ("text_encoders.t5xxl.transformer.shared.weight",),
}
_SD3 = Layout(
    name="Stable Diffusion 3",
    architecture="StableDiffusion3Pipeline",
    base="stabilityai/stable-diffusion-3-medium-diffusers",
    marks={
        "transformer": _either("joint_blocks.0.context_block.adaLN_modulation.1.bias"),
        "vae": _VAE,
        **_ENCODERS,
    },
    optional=("text_encoder_3",),
)
_SD35_MEDIUM = replace(_SD3, name="Stable Diffusion 3.5 Medium", base="stabilityai/stable-diffusion-3.5-medium")
_SD35_LARGE = replace(_SD3, name="Stable Diffusion 3.5 Large", base="stabilityai/stable-diffusion-3.5-large")
_FLUX_SCHNELL = Layout(
    name="Flux.1 schnell",
    architecture="FluxPipeline",
    base="black-forest-labs/FLUX.1-schnell",
    marks={
        "transformer": _either("double_blocks.0.img_attn.norm.key_norm.scale"),
        "vae": _VAE,
        "text_encoder": _ENCODERS["text_encoder"],
        "text_encoder_2": _ENCODERS["text_encoder_3"],
    },
)
# By the width of a packed latent: some models take an image in addition.
_FLUX = {
    64: replace(_FLUX_SCHNELL, name="Flux.1 dev", base="black-forest-labs/FLUX.1-dev"),
    128: replace(
        _FLUX_SCHNELL,
        name="Flux.1 Depth or Canny",
        architecture="FluxControlPipeline",
        base="black-forest-labs/FLUX.1-Depth-dev",
    ),
    384: replace(
        _FLUX_SCHNELL, name="Flux.1 Fill", architecture="FluxFillPipeline", base="black-forest-labs/FLUX.1-Fill-dev"
    ),
}
