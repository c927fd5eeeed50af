"""Parameters that the OpenAI endpoints of the text service share: sampling, metadata, and those without effect.

`top_k`, `min_p`, `repeat_penalty`, `ignore_eos`, `min_tokens` and `stop_token_ids` are extensions; in Responses all but
`temperature` and `top_p` are.
An unsupported parameter is accepted only with a value that has no effect. Metadata is returned unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from services.errors import InvalidRequest, Unsupported
from services.text.engine.sampling import SamplingParams

# Parameters with the same name in OpenAI's API and in the core. Absent ones get the core's defaults.
_PLAIN = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty"),
    "min_tokens",
)
MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512


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
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None


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
        stop_token_ids=tuple(given.stop_token_ids or ()),
    )


def _unsigned(seed: int) -> int:
    """Converts OpenAI's signed 64-bit seed to an unsigned one."""
    if not -(2**63) <= seed < 2**63:
        raise InvalidRequest(f"'seed' must be a 64-bit integer, not {seed}.", param="seed")
    return seed % 2**64


def refuse_others(parameters: Iterable[tuple[str, Any, tuple[Any, ...]]]) -> None:
    """Raises Unsupported for the first parameter whose value would have an effect.

    `parameters`: tuples of name, the caller's value, and the values accepted in addition to null.
    """
    for name, value, allowed in parameters:
        if value is not None and value not in allowed:
            raise Unsupported(f"'{name}' is not supported by this server with this value.", param=name)


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raises InvalidRequest if there are too many pairs or a key or value is too long."""
    if len(metadata) > MAX_METADATA_PAIRS:
        message = f"'metadata' has {len(metadata)} pairs; at most {MAX_METADATA_PAIRS} are allowed."
        raise InvalidRequest(message, param="metadata")
    if any(len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE for key, value in metadata.items()):
        message = (
            f"'metadata' may have keys of up to {MAX_METADATA_KEY} characters, values of up to {MAX_METADATA_VALUE}."
        )
        raise InvalidRequest(message, param="metadata")
