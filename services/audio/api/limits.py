"""Limits on the parameters of a transcription request, shared by both wire formats."""

from __future__ import annotations

from services.audio.engine.messages import VadOptions
from services.errors import InvalidRequest

MAX_PROMPT = 65_536  # characters; the model reads a few hundred tokens of it
MAX_BEAM_SIZE = 10
MAX_SILENCE_MS = 30_000
MAX_PADDING_MS = 5_000


def check_model(model: str) -> str:
    """Returns the model's name. Raises InvalidRequest if it is empty."""
    if not model:
        raise InvalidRequest("Missing required parameter: 'model'.", param="model")
    return model


def check_prompt(prompt: str) -> str:
    """Returns the prompt. Raises InvalidRequest if it is too long."""
    if len(prompt) > MAX_PROMPT:
        message = f"'prompt' has {len(prompt)} characters; at most {MAX_PROMPT} are allowed."
        raise InvalidRequest(message, param="prompt")
    return prompt


def check_temperature(temperature: float | None) -> float | None:
    """Returns the temperature. Raises InvalidRequest unless it is from 0 to 1."""
    if temperature is not None and not 0 <= temperature <= 1:
        raise InvalidRequest(f"'temperature' must be from 0 to 1, not {temperature:g}.", param="temperature")
    return temperature


def check_beam_size(beam_size: int | None) -> int | None:
    """Returns the width of the beam search. Raises InvalidRequest unless it is from 1 to MAX_BEAM_SIZE."""
    if beam_size is not None and not 1 <= beam_size <= MAX_BEAM_SIZE:
        raise InvalidRequest(f"'beam_size' must be from 1 to {MAX_BEAM_SIZE}, not {beam_size}.", param="beam_size")
    return beam_size


def vad_options(
    threshold: float | None, silence_ms: int | None, padding_ms: int | None, names: tuple[str, str, str]
) -> VadOptions:
    """Returns the options of voice activity detection; None selects a default.

    `names` are the caller's names of the three parameters. Raises InvalidRequest for a value out of bounds.
    """
    default = VadOptions()
    if threshold is not None and not 0 <= threshold <= 1:
        raise InvalidRequest(f"'{names[0]}' must be from 0 to 1, not {threshold:g}.", param=names[0])
    return VadOptions(
        threshold=default.threshold if threshold is None else threshold,
        silence_ms=_milliseconds(silence_ms, default.silence_ms, MAX_SILENCE_MS, names[1]),
        padding_ms=_milliseconds(padding_ms, default.padding_ms, MAX_PADDING_MS, names[2]),
    )


def _milliseconds(value: int | None, default: int, most: int, name: str) -> int:
    if value is None:
        return default
    if not 0 <= value <= most:
        raise InvalidRequest(f"'{name}' must be from 0 to {most} milliseconds, not {value}.", param=name)
    return value
