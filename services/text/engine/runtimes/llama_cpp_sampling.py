"""The sampling of the `llama_cpp` runtime: a request's state, and its chain of llama.cpp's samplers."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp

from services.text.engine.constraint import Constraint
from services.text.engine.sampling import SamplingParams


@dataclass(slots=True)
class LlamaSampler:
    """Sampling state of one request."""

    chain: Any = None  # of llama.cpp's samplers; None for greedy sampling
    ignore_end: bool = False
    constraint: Constraint | None = None
    logprobs: int | None = None
    min_tokens: int = 0  # tokens to sample without those in `early`
    early: Any = None  # tokens that end the answer


def sampler_chain(params: SamplingParams, prompt: Sequence[int], vocabulary: int, history: int) -> Any:
    """Builds the sampler chain in the order that SamplingParams defines. Penalties cover the whole context."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    add = llama_cpp.llama_sampler_chain_add
    if params.logit_bias:
        biases = (llama_cpp.llama_logit_bias * len(params.logit_bias))(
            *(llama_cpp.llama_logit_bias(token, bias) for token, bias in params.logit_bias)
        )
        add(chain, llama_cpp.llama_sampler_init_logit_bias(vocabulary, len(biases), biases))
    if params.repeat_penalty != 1.0:
        repeat = llama_cpp.llama_sampler_init_penalties(vocabulary, history, params.repeat_penalty, 0.0, 0.0)
        for token in prompt:
            llama_cpp.llama_sampler_accept(repeat, token)
        add(chain, repeat)
    if params.frequency_penalty or params.presence_penalty:
        frequency, presence = params.frequency_penalty, params.presence_penalty
        add(chain, llama_cpp.llama_sampler_init_penalties(vocabulary, history, 1.0, frequency, presence))
    if params.temperature == 0:
        add(chain, llama_cpp.llama_sampler_init_greedy())
        return chain
    if params.temperature != 1.0:
        add(chain, llama_cpp.llama_sampler_init_temp(params.temperature))
    if params.top_k > 0:
        add(chain, llama_cpp.llama_sampler_init_top_k(params.top_k))
    if params.top_p < 1.0:
        add(chain, llama_cpp.llama_sampler_init_top_p(params.top_p, 1))
    if params.min_p > 0:
        add(chain, llama_cpp.llama_sampler_init_min_p(params.min_p, 1))
    add(chain, llama_cpp.llama_sampler_init_dist(_seed(params.seed)))
    return chain


def _seed(wanted: int | None) -> int:
    """Returns a 32-bit seed, never LLAMA_DEFAULT_SEED, which llama.cpp treats as "random"."""
    seed = secrets.randbits(32) if wanted is None else (wanted ^ (wanted >> 32)) & 0xFFFFFFFF
    return seed if seed != llama_cpp.LLAMA_DEFAULT_SEED else 0
