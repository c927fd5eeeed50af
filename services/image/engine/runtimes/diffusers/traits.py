"""The capabilities and limits of a pipeline, from its configuration and its defaults: schedulers, sizes, prompts."""

from __future__ import annotations

import copy
import inspect
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import diffusers
from diffusers.utils.import_utils import is_scipy_available

from services.image.engine.messages import GuidanceRange, Mode, PipelineReady, Sizes
from services.image.engine.runtime import PromptLength
from services.worker.messages import EngineError

# For models that predict noise or velocity, such as Stable Diffusion and XL.
_NOISE = {
    "ddim": "DDIMScheduler",
    "ddpm": "DDPMScheduler",
    "dpmpp_2m": "DPMSolverMultistepScheduler",
    "euler": "EulerDiscreteScheduler",
    "euler_a": "EulerAncestralDiscreteScheduler",
    "heun": "HeunDiscreteScheduler",
    "lms": "LMSDiscreteScheduler",
    "pndm": "PNDMScheduler",
    "unipc": "UniPCMultistepScheduler",
}
# For models trained by flow matching, such as Stable Diffusion 3 and Flux.
_FLOW = {
    "flow_match_euler": "FlowMatchEulerDiscreteScheduler",
    "flow_match_heun": "FlowMatchHeunDiscreteScheduler",
}
# Overrides of a scheduler's defaults, for options that the model's own scheduler does not set: Stable Diffusion was
# published with PNDM without Runge-Kutta steps, which would take three network runs each and at least four steps.
_OPTIONS: dict[str, dict[str, Any]] = {"PNDMScheduler": {"skip_prk_steps": True}}
_NEED_SCIPY = {"LMSDiscreteScheduler"}


class Schedulers:
    """The schedulers that a model can use. `own` is the model's scheduler; `sigmas` is true if its pipeline passes the
    noise levels itself, which not every scheduler accepts."""

    def __init__(self, own: Any, sigmas: bool) -> None:
        self._own = own
        kind = type(own).__name__
        family = next((table for table in (_NOISE, _FLOW) if kind in table.values()), {})
        self._classes = {name: getattr(diffusers, what) for name, what in family.items() if self._fits(what, sigmas)}
        self.default = next((name for name, what in self._classes.items() if what is type(own)), kind)
        self._classes[self.default] = type(own)

    @property
    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._classes)

    def build(self, name: str) -> Any:
        """Builds a new scheduler, without state of earlier images."""
        kind = self._classes[name]
        options = {} if kind is type(self._own) else _OPTIONS.get(kind.__name__, {})
        return kind.from_config(self._own.config, **options)

    def _fits(self, what: str, sigmas: bool) -> bool:
        if what == type(self._own).__name__:
            return True
        scipy: Any = is_scipy_available
        if what in _NEED_SCIPY and not scipy():
            return False
        return not sigmas or "sigmas" in inspect.signature(getattr(diffusers, what).set_timesteps).parameters


MOST_STEPS = 150
MOST_GUIDANCE = 30.0
_LARGER = 4  # an image may have this many times the model's default pixels and its longer side
_DISTILLED_STEPS = 4  # of models distilled to need no guidance
_LARGEST = 4096  # pixels per side
_NAMES = (("tokenizer", "text_encoder"), ("tokenizer_2", "text_encoder_2"), ("tokenizer_3", "text_encoder_3"))


class Traits:
    """The traits of one model. `pipelines` has one pipeline per mode, the model's own first."""

    def __init__(self, pipelines: Mapping[Mode, Any]) -> None:
        self._pipelines = pipelines
        self._own = next(iter(pipelines.values()))
        self._unet = getattr(self._own, "unet", None)
        self._denoiser = self._unet if self._unet is not None else self._own.transformer

    @property
    def sigmas(self) -> bool:
        """True if the pipeline passes the noise levels to the scheduler: pipelines with packed latents do."""
        return self._packed

    @property
    def negative(self) -> bool:
        """True if negative prompts are supported. Pipelines with two kinds of guidance would need the other kind."""
        parameters = _parameters(self._own)
        return "negative_prompt" in parameters and "true_cfg_scale" not in parameters and not self._embedded

    @property
    def sizes(self) -> Sizes:
        """The sizes of its images."""
        scale = self._scale
        height, width = self._own_size()
        multiple = math.lcm(8, scale * self._patch)
        deepest = 2 ** (len(self._unet.config.down_block_types) - 1) if self._unet is not None else 1
        side = max(height, width)
        most = min(_LARGER * side, self._grid_limit() * scale, _LARGEST) // multiple * multiple
        return Sizes(
            width=width,
            height=height,
            multiple_of=multiple,
            min_side=-(-max(multiple, scale * deepest) // multiple) * multiple,
            max_side=max(most, side),
            max_pixels=_LARGER * width * height,
        )

    def ready(self, schedulers: Schedulers, prompts: Prompts, batch_images: int) -> PipelineReady:
        """Builds the PipelineReady message for the service."""
        steps, guidance = self._steps_and_guidance()
        trained = self._own.scheduler.config.get("num_train_timesteps", MOST_STEPS)
        return PipelineReady(
            family=type(self._own).__name__,
            sizes=self.sizes,
            default_steps=steps,
            max_steps=min(MOST_STEPS, trained),
            guidance=guidance,
            schedulers=schedulers.names,
            default_scheduler=schedulers.default,
            prompt_tokens=prompts.limit,
            modes=list(self._pipelines),
            negative=self.negative,
            image_strength=self._strength("image_to_image"),
            mask_strength=self._strength("inpainting"),
            batch_images=batch_images,
        )

    @property
    def _scale(self) -> int:
        """Pixels per latent, along a side."""
        return int(self._own.vae_scale_factor)

    @property
    def _patch(self) -> int:
        """Latents per patch, along a side."""
        if self._packed:
            return 2
        return int(self._denoiser.config.get("patch_size") or 1)

    @property
    def _packed(self) -> bool:
        return hasattr(self._own, "_pack_latents")

    @property
    def _embedded(self) -> bool:
        """True if guidance is an input of the denoiser (latent consistency) instead of a second, unconditional pass."""
        return self._unet is not None and self._unet.config.get("time_cond_proj_dim") is not None

    def _own_size(self) -> tuple[int, int]:
        """Returns the height and width that the model was trained for."""
        latents = getattr(self._own, "default_sample_size", None) or self._denoiser.config.sample_size
        height, width = latents if isinstance(latents, list | tuple) else (latents, latents)
        return height * self._scale, width * self._scale

    def _grid_limit(self) -> int:
        """Returns the latents along a side that the denoiser has positions for."""
        positions = self._denoiser.config.get("pos_embed_max_size")
        return positions * self._patch if isinstance(positions, int) else _LARGEST

    def _steps_and_guidance(self) -> tuple[int, GuidanceRange]:
        parameters = _parameters(self._own)
        steps = int(parameters["num_inference_steps"].default)
        guidance = parameters["guidance_scale"].default if "guidance_scale" in parameters else None
        if self._denoiser.config.get("guidance_embeds") is False:
            return _DISTILLED_STEPS, GuidanceRange(default=0.0, minimum=0.0, maximum=0.0)
        if not isinstance(guidance, int | float):
            return steps, GuidanceRange(default=0.0, minimum=0.0, maximum=0.0)
        return steps, GuidanceRange(default=float(guidance), minimum=0.0, maximum=MOST_GUIDANCE)

    def _strength(self, mode: Mode) -> float:
        found = _parameters(self._pipelines[mode]).get("strength") if mode in self._pipelines else None
        return float(found.default) if found is not None and found.default is not None else 1.0


def _parameters(pipeline: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(pipeline.__call__).parameters


@dataclass(frozen=True, slots=True)
class _Encoder:
    tokenizer: Any
    limit: int  # tokens, without special tokens


class Prompts:
    """Counts the tokens of prompts, thread-safe, with copies of the tokenizers of all text encoders of a pipeline."""

    def __init__(self, pipeline: Any) -> None:
        """Raises EngineError (UNSUPPORTED) if the pipeline has no text encoder."""
        self._lock = threading.Lock()
        self._encoders = []
        for name, model in _NAMES:
            tokenizer, encoder = getattr(pipeline, name, None), getattr(pipeline, model, None)
            if tokenizer is not None and encoder is not None:
                # A copy, because the pipeline sets truncation and padding on its own tokenizer while it runs.
                limit = _limit(pipeline, tokenizer, encoder) - tokenizer.num_special_tokens_to_add()
                self._encoders.append(_Encoder(copy.deepcopy(tokenizer), limit))
        if not self._encoders:
            raise EngineError("UNSUPPORTED", f"{type(pipeline).__name__} has no text encoder")

    @property
    def limit(self) -> int:
        """Most tokens of a prompt, of the encoder with the lowest limit."""
        return min(encoder.limit for encoder in self._encoders)

    def fit(self, prompt: str) -> PromptLength:
        """Counts a prompt's tokens, for the encoder with the least room left."""
        with self._lock:
            fits = [PromptLength(self._count(encoder.tokenizer, prompt), encoder.limit) for encoder in self._encoders]
        return min(fits, key=lambda fit: fit.limit - fit.tokens)

    def _count(self, tokenizer: Any, prompt: str) -> int:
        return len(tokenizer(prompt, add_special_tokens=False, truncation=False, verbose=False)["input_ids"])


def _limit(pipeline: Any, tokenizer: Any, encoder: Any) -> int:
    """Returns the encoder's limit, including special tokens; diffusers would truncate longer prompts."""
    limits = [tokenizer.model_max_length]
    positions = encoder.config.to_dict().get("max_position_embeddings")
    if isinstance(positions, int):
        limits.append(positions)
    chosen = inspect.signature(pipeline.__call__).parameters.get("max_sequence_length")
    # CLIP's length is fixed; for other encoders the pipeline chooses the length.
    if chosen is not None and isinstance(chosen.default, int) and not encoder.config.model_type.startswith("clip"):
        limits.append(chosen.default)
    return int(min(limits))
