"""Checks a request against the model's limits before it is queued."""

from __future__ import annotations

from services.image.engine.messages import MAX_PARTIALS, Generate, Mode, Ready
from services.image.engine.runtime import Fit, Runtime
from services.worker.messages import EngineError

MAX_COUNT = 10  # images of one request, as in OpenAI's API
MOST_SEED = 2**64 - 1


def check(request: Generate, runtime: Runtime) -> int:
    """Checks a request and returns the tokens of its prompts. Raises EngineError, which names the wrong parameter."""
    ready = runtime.ready
    _check_size(request, ready)
    _within("n", request.count, 1, MAX_COUNT)
    _within("seed", request.seed, 0, MOST_SEED)
    _within("steps", request.steps, 1, ready.max_steps)
    _within("partial_images", request.partials, 0, MAX_PARTIALS)
    if ready.guidance.minimum == ready.guidance.maximum != request.guidance:
        raise EngineError("UNSUPPORTED", "this model takes no guidance", "guidance")
    _within("guidance", request.guidance, ready.guidance.minimum, ready.guidance.maximum)
    if request.scheduler and request.scheduler not in ready.schedulers:
        known = ", ".join(ready.schedulers)
        raise EngineError("INVALID_REQUEST", f"this model has no scheduler of that name, but {known}", "scheduler")
    _check_image(request, ready)
    return _check_prompts(request, runtime)


def mode_of(request: Generate) -> Mode:
    """Returns the mode of a request: an image without a mask is changed everywhere."""
    if request.image is None:
        return "text_to_image"
    return "image_to_image" if request.mask is None else "inpainting"


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # also true for NaN
        raise EngineError("INVALID_REQUEST", f"{name} must be from {least:g} to {most:g}, not {value:g}", name)


def _check_size(request: Generate, ready: Ready) -> None:
    sizes = ready.sizes
    asked = f"{request.width}x{request.height}"
    for side in (request.width, request.height):
        if side % sizes.multiple_of:
            message = f"both sides must be multiples of {sizes.multiple_of} pixels: {asked} is not"
            raise EngineError("INVALID_REQUEST", message, "size")
        if not sizes.min_side <= side <= sizes.max_side:
            message = f"this model makes images with sides from {sizes.min_side} to {sizes.max_side}, not {asked}"
            raise EngineError("INVALID_REQUEST", message, "size")
    if request.width * request.height > sizes.max_pixels:
        message = f"{asked} are more than the {sizes.max_pixels} pixels that this model makes"
        raise EngineError("INVALID_REQUEST", message, "size")


def _check_image(request: Generate, ready: Ready) -> None:
    mode = mode_of(request)
    pixels = request.width * request.height
    if request.mask is not None and request.image is None:
        raise EngineError("INVALID_REQUEST", "a mask needs an image", "mask")
    if mode not in ready.modes:
        message = f"this model can do {', '.join(ready.modes)}, but not {mode}"
        raise EngineError("UNSUPPORTED", message, "prompt" if mode == "text_to_image" else "image")
    if request.image is not None and len(request.image) != 3 * pixels:
        raise EngineError("INVALID_REQUEST", f"the image must be {request.width}x{request.height} pixels", "image")
    if request.mask is not None and len(request.mask) != pixels:
        raise EngineError("INVALID_REQUEST", f"the mask must be {request.width}x{request.height} pixels", "mask")
    if request.image is None:
        return
    if not 0 < request.strength <= 1:
        message = f"strength must be above 0 and at most 1, not {request.strength:g}"
        raise EngineError("INVALID_REQUEST", message, "strength")
    if int(request.steps * request.strength) < 1:
        message = f"of {request.steps} steps a strength of {request.strength:g} leaves none"
        raise EngineError("INVALID_REQUEST", message, "strength")


def _check_prompts(request: Generate, runtime: Runtime) -> int:
    if request.negative and not runtime.ready.negative:
        raise EngineError("UNSUPPORTED", "this model takes no negative prompt", "negative_prompt")
    if request.negative and request.guidance <= 1:
        message = f"a negative prompt has no effect at a guidance of {request.guidance:g}: it must be above 1"
        raise EngineError("INVALID_REQUEST", message, "negative_prompt")
    tokens = _fitting(runtime.fit(request.prompt), "prompt")
    if request.negative:
        tokens += _fitting(runtime.fit(request.negative), "negative_prompt")
    return tokens


def _fitting(fit: Fit, name: str) -> int:
    if fit.tokens > fit.limit:
        message = f"the {name} has {fit.tokens} tokens; this model's text encoder takes at most {fit.limit}"
        raise EngineError("INVALID_REQUEST", message, name)
    return fit.tokens
