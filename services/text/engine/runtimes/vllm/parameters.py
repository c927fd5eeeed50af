"""Conversion of a request's sampling parameters to vLLM's."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from vllm import SamplingParams as VllmParams

from services.text.engine.sampling import SamplingParams
from services.worker.messages import EngineError

MOST_BIASES = 1024  # tokens that vLLM's sampler has room for


def vllm_params(params: SamplingParams, ends: Collection[int], most: int, logprobs: int | None) -> VllmParams:
    """Converts sampling parameters. `ends`: tokens that end a turn; `most`: maximum tokens; `logprobs`: as in Submit.

    Raises:
        EngineError: INVALID_REQUEST if vLLM does not support the parameters.
    """
    if len(params.logit_bias) > MOST_BIASES:
        raise EngineError("INVALID_REQUEST", f"logit_bias has more than {MOST_BIASES} tokens", "logit_bias")
    given: dict[str, Any] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "seed": _signed(params.seed),
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repeat_penalty,
        "logit_bias": dict(params.logit_bias) or None,
        "max_tokens": most,
        "stop_token_ids": sorted(ends),
        "min_tokens": most if params.ignore_eos else 0,  # no end is sampled before
        "logprobs": logprobs,
        "detokenize": False,
        # A cached prefix changes the rounding of sums, but runs with a seed must be equal.
        "skip_reading_prefix_cache": params.seed is not None,
    }
    try:
        return VllmParams(**given)
    except ValueError as error:
        raise EngineError("INVALID_REQUEST", f"vLLM refuses the request: {error}") from error


def _signed(seed: int | None) -> int | None:
    """Converts a seed to vLLM's signed 64 bits. Avoids -1, which vLLM treats as no seed."""
    if seed is None:
        return None
    signed = seed - 2**64 if seed >= 2**63 else seed
    return -2 if signed == -1 else signed
