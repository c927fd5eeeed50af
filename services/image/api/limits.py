"""Limits of image requests that hold for every model and both wire formats."""

from __future__ import annotations

from services.errors import InvalidRequest, RequestTooLarge, Unsupported
from services.image.parameters import OutputFormat
from services.pictures.messages import FileKind

MAX_PROMPT = 32_000  # characters; the model's text encoder takes less and has its own check
MAX_COUNT = 10
MAX_SEED = 2**53 - 1  # the largest integer that JSON carries exactly
MAX_PARTIALS = 3
MAX_QUALITY = 100


def check_model(model: str) -> str:
    """Returns the model's name. Raises InvalidRequest if it is empty."""
    if not model:
        raise InvalidRequest("Missing required parameter: 'model'.", param="model")
    return model


def check_prompt(prompt: str, name: str = "prompt", *, required: bool = True) -> str:
    """Returns the prompt. Raises InvalidRequest if it is missing or too long."""
    if required and not prompt.strip():
        raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name)
    if len(prompt) > MAX_PROMPT:
        raise InvalidRequest(f"'{name}' has {len(prompt)} characters; at most {MAX_PROMPT} are allowed.", param=name)
    return prompt


def check_count(count: int | None, name: str) -> int:
    """Returns the number of pictures, by default one. Raises InvalidRequest."""
    return _within(count, 1, MAX_COUNT, name, 1)


def check_seed(seed: int | None) -> int | None:
    """Returns the seed. Raises InvalidRequest."""
    return None if seed is None else _within(seed, 0, MAX_SEED, "seed", 0)


def check_partials(count: int | None, name: str) -> int:
    """Returns the number of previews, by default none. Raises InvalidRequest."""
    return _within(count, 0, MAX_PARTIALS, name, 0)


def check_output(kind: FileKind, quality: int | None, name: str) -> OutputFormat:
    """Returns the output format; `name` is the request's name for the quality.

    Raises:
        InvalidRequest: the quality is out of bounds.
        Unsupported: a quality for PNG, which is lossless.
    """
    checked = _within(quality, 0, MAX_QUALITY, name, MAX_QUALITY)
    if kind == "png" and checked != MAX_QUALITY:
        raise Unsupported(f"'{name}' below {MAX_QUALITY} needs the format jpeg or webp, not png.", param=name)
    return OutputFormat(kind, checked)


def check_file(data: bytes, limit: int, name: str) -> bytes:
    """Returns an uploaded file. Raises InvalidRequest if it is missing, RequestTooLarge if it is over the limit."""
    if not data:
        raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name)
    if len(data) > limit:
        raise too_large(name, limit)
    return data


def too_large(name: str, limit: int) -> RequestTooLarge:
    """Builds the error for a file over the limit."""
    return RequestTooLarge(f"'{name}' is over the limit of {limit} bytes (ALLM_MAX_IMAGE_BYTES).", param=name)


def _within(value: int | None, low: int, high: int, name: str, default: int) -> int:
    if value is None:
        return default
    if not low <= value <= high:
        raise InvalidRequest(f"'{name}' must be from {low} to {high}, not {value}.", param=name)
    return value
