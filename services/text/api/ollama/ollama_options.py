"""Ollama's `options`, `think`, `format` and `keep_alive`, converted to the core's types.

Reference: https://docs.ollama.com/modelfile#parameter. Absent options get Ollama's defaults for temperature, top_p and
top_k, but no repeat penalty: here it would count the whole prompt, not the last 64 tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from services.errors import InvalidRequest
from services.rest.openai import body
from services.text.conversation import OutputFormat, ReasoningEffort
from services.text.engine.sampling import SamplingParams

Format = Literal["", "json"] | dict[str, Any]
Think = bool | Literal["low", "medium", "high", "max"]
# The core's parameters that Ollama has under other names, for errors.
CALLED = {"response_format": "format", "reasoning_effort": "think", "max_tokens": "options.num_predict"}
_SAME = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop"),
    *("presence_penalty", "frequency_penalty", "repeat_penalty"),
)
NAMES = {**CALLED, **{name: f"options.{name}" for name in _SAME}}
_DEFAULTS = {"temperature": 0.8, "top_p": 0.9, "top_k": 40}
# Options without effect here, with the value that asks for nothing.
_UNUSED: Mapping[str, tuple[Any, ...]] = {
    # of loading a model, which is shared
    **dict.fromkeys(("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "numa", "low_vram"), ()),
    **dict.fromkeys(("f16_kv", "logits_all", "vocab_only", "use_mmap", "use_mlock", "embedding_only"), ()),
    # of sampling
    **{"mirostat": (0,), "mirostat_tau": (), "mirostat_eta": (), "tfs_z": (1,), "typical_p": (1,)},
    **{"repeat_last_n": (), "penalize_newline": ()},
}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|\u00b5s|ms|s|m|h)", re.ASCII)
_UNITS = {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
MAX_DURATION = 64  # characters
FOREVER = 10 * 365 * 86_400.0  # seconds; longer is infinite


class OptionsBody(msgspec.Struct, kw_only=True):
    """The options that have an effect. Ollama accepts whole numbers as floats."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | float | None = None
    min_p: float | None = None
    seed: int | float | None = None
    num_predict: int | float | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


def sampling_of(options: Mapping[str, Any] | None) -> SamplingParams:
    """Converts the options, without checking their bounds.

    Raises:
        InvalidRequest: a type is wrong; `param` names the option.
    """
    given = body.convert(options or {}, OptionsBody, "options")
    plain: dict[str, Any] = dict(_DEFAULTS)
    for name in ("temperature", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty"):
        if (value := getattr(given, name)) is not None:
            plain[name] = value
    if given.top_k is not None:
        plain["top_k"] = max(0, _whole(given.top_k, "top_k"))
    seed = None if given.seed is None else _whole(given.seed, "seed")
    most = -1 if given.num_predict is None else _whole(given.num_predict, "num_predict")
    return SamplingParams(
        **plain,
        seed=None if seed is None or seed < 0 else seed,
        stop=(given.stop,) if isinstance(given.stop, str) else tuple(given.stop or ()),
        max_tokens=most if most > 0 else None,
    )


def _whole(value: float, name: str) -> int:
    if not math.isfinite(value) or value != int(value):
        param = f"options.{name}"
        raise InvalidRequest(f"'{param}' must be a whole number, not {value}.", param=param)
    return int(value)


def unused_options(options: Mapping[str, Any] | None) -> Iterator[str]:
    """Yields the names of Ollama's options that have no effect here."""
    for name, value in (options or {}).items():
        if name in _UNUSED and value is not None and value not in _UNUSED[name]:
            yield f"options.{name}"


def unknown_options(options: Mapping[str, Any] | None) -> list[str]:
    """Returns the names of options that Ollama does not have either."""
    known = {field.name for field in msgspec.structs.fields(OptionsBody)} | _UNUSED.keys()
    return [f"options.{name}" for name, value in (options or {}).items() if name not in known and value is not None]


def output_of(format: Format | None) -> OutputFormat:
    """Converts a format: `json`, or a JSON Schema."""
    if not format:
        return OutputFormat()
    if isinstance(format, dict):
        return OutputFormat(kind="json_schema", schema=format)
    return OutputFormat(kind="json_object")


def effort_of(think: Think | None) -> ReasoningEffort:
    """Converts `think`: absent, it is left to the model."""
    if think is None:
        return ""
    if isinstance(think, bool):
        return "medium" if think else "none"
    return think


def keep_alive_of(given: float | str | None) -> float | None:
    """Returns how long a model should stay after a request, in seconds; negative and very long ones are infinite.

    Raises:
        InvalidRequest: it is neither a number of seconds nor a duration such as `10m` or `1h30m`.
    """
    if given is None:
        return None
    seconds = _duration(given) if isinstance(given, str) else given
    if seconds is None or math.isnan(seconds):
        shown = f"{given[:40]!r}" if isinstance(given, str) else f"{given}"
        message = f"'keep_alive' must be a number of seconds or a duration such as '10m', not {shown}."
        raise InvalidRequest(message, param="keep_alive")
    return seconds if 0 <= seconds <= FOREVER else math.inf


def _duration(text: str) -> float | None:
    """Returns the seconds of a duration in Go's notation, or of a plain number; None if it is neither."""
    text = text.strip()
    if len(text) > MAX_DURATION:
        return None
    unsigned = text[1:] if text[:1] in ("-", "+") else text
    sign = -1.0 if text.startswith("-") else 1.0
    if re.fullmatch(r"\d+(?:\.\d*)?", unsigned, re.ASCII):
        return sign * float(unsigned)
    if not unsigned or _PART.sub("", unsigned):
        return None
    return sign * sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(unsigned))
