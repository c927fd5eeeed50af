"""The sampling parameters that Chat Completions, Completions and Responses share, as JSON.

`top_k`, `min_p`, `repeat_penalty` and `ignore_eos` are extensions; in Responses all but `temperature` and `top_p` are.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from services.errors import InvalidRequest
from services.text.engine.sampling import SamplingParams

# Parameters with the same name in OpenAI's API and in the core. Absent ones get the core's defaults.
_PLAIN = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty")


class SamplingBody(msgspec.Struct, kw_only=True):
    """The sampling parameters of a request body."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None


def sampling_of(
    given: SamplingBody, max_tokens: int | None, logit_bias: Mapping[int, float] | None = None
) -> SamplingParams:
    """Converts the parameters to the core's type, without checking their bounds.

    Raises:
        InvalidRequest: `seed` is not a 64-bit integer.
    """
    plain = {name: value for name in _PLAIN if (value := getattr(given, name)) is not None}
    return SamplingParams(
        **plain,
        seed=None if given.seed is None else _unsigned(given.seed),
        logit_bias=tuple((logit_bias or {}).items()),
        stop=(given.stop,) if isinstance(given.stop, str) else tuple(given.stop or ()),
        max_tokens=max_tokens,
        ignore_eos=bool(given.ignore_eos),
    )


def _unsigned(seed: int) -> int:
    """Converts OpenAI's signed 64-bit seed to an unsigned one."""
    if not -(2**63) <= seed < 2**63:
        raise InvalidRequest(f"'seed' must be a 64-bit integer, not {seed}.", param="seed")
    return seed % 2**64
