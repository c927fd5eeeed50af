"""Sampling parameters of a request: plain numbers, already checked, with every default filled in."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request, the same for every runtime.

    They apply in this order: logit bias, penalties, temperature, top_k, top_p, min_p (the order of vLLM and
    transformers, so that a prompt behaves the same on every runtime).
    """

    temperature: float = 1.0  # 0: always the most likely token
    top_p: float = 1.0  # (0, 1]; 1: off
    top_k: int = 0  # 0: off
    min_p: float = 0.0  # [0, 1]; 0: off
    seed: int | None = None  # 0 to 2**64 - 1; None: random. A seed turns prefix reuse off: runs repeat
    presence_penalty: float = 0.0  # over the generated tokens
    frequency_penalty: float = 0.0  # over the generated tokens
    repeat_penalty: float = 1.0  # over prompt and generated tokens; 1: off
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    stop: tuple[str, ...] = ()  # texts that end the answer
    max_tokens: int | None = None  # None: up to the end of the context
    ignore_eos: bool = False  # continue past the end-of-turn token
    min_tokens: int = 0  # so many tokens come before the turn's end, a stop token, or a stop text that counts
    stop_token_ids: tuple[int, ...] = ()  # tokens that end the answer and are not part of it

    @property
    def greedy(self) -> bool:
        """True if the next token is always the one with the highest logit."""
        return self.temperature == 0 and not (
            self.logit_bias or self.presence_penalty or self.frequency_penalty or self.repeat_penalty != 1.0
        )

    def constrained(self) -> SamplingParams:
        """Returns the parameters under a grammar, which alone ends the answer: cut elsewhere, it would not parse."""
        return dataclasses.replace(self, **_ENDING)

    def for_choice(self, number: int) -> SamplingParams:
        """Returns the parameters for one of several answers to a prompt. Seeds differ, or all would be equal."""
        if self.seed is None:
            return self
        return dataclasses.replace(self, seed=(self.seed + number) % 2**64)


# The parameters that end an answer, or keep it from its end, with values that do neither.
_ENDING: dict[str, Any] = {"stop": (), "ignore_eos": False, "min_tokens": 0, "stop_token_ids": ()}


def without_effect(params: SamplingParams) -> list[str]:
    """Returns the names of the parameters that have no effect under a grammar."""
    return [name for name, off in _ENDING.items() if getattr(params, name) != off]
