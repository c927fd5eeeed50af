"""Checks a request against the model's limits before it is queued, and limits the pictures of a batch."""

from __future__ import annotations

from services.image.engine.messages import MAX_PARTIALS, Draft, Generate, Parameters, PipelineReady
from services.image.engine.runtime import PromptLength, Runtime
from services.worker.messages import EngineError

MAX_COUNT = 10  # images of one request, as in OpenAI's API
MOST_SEED = 2**64 - 1
# Pixels that keep a few CPU cores busy: on a CPU a larger batch is no faster, and later requests wait for it.
CPU_PIXELS = 512 * 512
MOST_IMAGES = 16
SPARE = 0.8  # share of the free memory that may be used


def check(request: Generate, runtime: Runtime) -> int:
    """Checks a request and returns the tokens of its prompts. Raises EngineError, which names the wrong parameter."""
    ready, parameters = runtime.ready, request.parameters
    _check_size(parameters, ready)
    _within("n", request.count, 1, MAX_COUNT)
    _within("seed", request.draft.seed, 0, MOST_SEED)
    _within("steps", parameters.steps, 1, ready.max_steps)
    _within("partial_images", request.partials, 0, MAX_PARTIALS)
    if ready.guidance.minimum == ready.guidance.maximum != parameters.guidance:
        raise EngineError("UNSUPPORTED", "this model does not support guidance", "guidance")
    _within("guidance", parameters.guidance, ready.guidance.minimum, ready.guidance.maximum)
    if parameters.scheduler not in ready.schedulers:
        known = ", ".join(ready.schedulers)
        raise EngineError("INVALID_REQUEST", f"'scheduler' must be one of {known}", "scheduler")
    _check_image(parameters, request.draft, ready)
    return _check_prompts(parameters, request.draft, runtime)


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # also true for NaN
        raise EngineError("INVALID_REQUEST", f"'{name}' must be from {least:g} to {most:g}, not {value:g}", name)


def _check_size(parameters: Parameters, ready: PipelineReady) -> None:
    sizes = ready.sizes
    asked = f"{parameters.width}x{parameters.height}"
    for side in (parameters.width, parameters.height):
        if side % sizes.multiple_of:
            message = f"width and height must be multiples of {sizes.multiple_of} pixels, not {asked}"
            raise EngineError("INVALID_REQUEST", message, "size")
        if not sizes.min_side <= side <= sizes.max_side:
            message = f"this model makes images with sides from {sizes.min_side} to {sizes.max_side}, not {asked}"
            raise EngineError("INVALID_REQUEST", message, "size")
    if parameters.width * parameters.height > sizes.max_pixels:
        message = f"{asked} is more than the {sizes.max_pixels} pixels that this model makes"
        raise EngineError("INVALID_REQUEST", message, "size")


def _check_image(parameters: Parameters, draft: Draft, ready: PipelineReady) -> None:
    mode, strength = draft.mode, parameters.strength or 0.0
    pixels = parameters.width * parameters.height
    if draft.mask is not None and draft.image is None:
        raise EngineError("INVALID_REQUEST", "a mask needs an image", "mask")
    if mode not in ready.modes:
        message = f"this model supports {', '.join(ready.modes)}, not {mode}"
        raise EngineError("UNSUPPORTED", message, "prompt" if mode == "text_to_image" else "image")
    if draft.image is not None and len(draft.image) != 3 * pixels:
        raise EngineError(
            "INVALID_REQUEST", f"the image must be {parameters.width}x{parameters.height} pixels", "image"
        )
    if draft.mask is not None and len(draft.mask) != pixels:
        raise EngineError("INVALID_REQUEST", f"the mask must be {parameters.width}x{parameters.height} pixels", "mask")
    if draft.image is None:
        return
    if not 0 < strength <= 1:
        message = f"'strength' must be above 0 and at most 1, not {strength:g}"
        raise EngineError("INVALID_REQUEST", message, "strength")
    if int(parameters.steps * strength) < 1:
        message = f"'strength' {strength:g} of {parameters.steps} steps is less than one step"
        raise EngineError("INVALID_REQUEST", message, "strength")


def _check_prompts(parameters: Parameters, draft: Draft, runtime: Runtime) -> int:
    if draft.negative and not runtime.ready.negative:
        raise EngineError("UNSUPPORTED", "this model does not support negative prompts", "negative_prompt")
    if draft.negative and parameters.guidance <= 1:
        message = f"a negative prompt has no effect at a guidance of {parameters.guidance:g}: it must be above 1"
        raise EngineError("INVALID_REQUEST", message, "negative_prompt")
    tokens = _fitting(runtime.fit(draft.prompt), "prompt")
    if draft.negative:
        tokens += _fitting(runtime.fit(draft.negative), "negative_prompt")
    return tokens


def _fitting(fit: PromptLength, name: str) -> int:
    if fit.tokens > fit.limit:
        message = f"the {name} has {fit.tokens} tokens; this model's text encoder takes at most {fit.limit}"
        raise EngineError("INVALID_REQUEST", message, name)
    return fit.tokens


def batch_images(wanted: int, fitting: int) -> int:
    """Returns the operator's choice (`wanted`; 0: none), else as many as fit, but at least one."""
    return wanted or max(1, min(MOST_IMAGES, fitting))
