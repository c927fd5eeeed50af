"""A request inside the batch loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from services.text.engine.kv_cells import Holding
from services.text.engine.logprobs import HeldLogprobs
from services.text.engine.sampling import SamplingParams
from services.text.engine.text import TextAssembler


@dataclass(slots=True, eq=False)
class Sequence:
    """One request: its tokens, the number of computed tokens, and their cells."""

    request: int
    client: str
    tokens: list[int]  # prompt, then generated tokens
    prompt_tokens: int
    last_token: int  # total tokens (prompt included) at which the answer ends by length
    params: SamplingParams
    sampler: Any
    text: TextAssembler
    logprobs: HeldLogprobs | None  # None if the request asks for none
    special: bool  # whether control tokens show in the text
    cache_key: str  # the client's name of the request's session, or empty
    arrival: int  # order of arrival
    deadline: float = math.inf  # on the monotonic clock; the caller has given up by then
    held: bool = False  # whether the caller does not read; computation pauses
    phase: str = "queue"  # queue, prefill or decode
    id: int = -1  # sequence id in the runtime while it runs
    begun: bool = False  # whether the search for a reusable prefix is done
    computed: int = 0  # computed tokens, whose cells are filled
    cached: int = 0  # prompt tokens that came from the prefix cache
    holding: Holding = field(default_factory=Holding)
    marks: list[int] = field(default_factory=list)  # positions of its prompt at which its state is kept

    @property
    def keys(self) -> set[str]:
        """The client's names of the request's sessions: one or none."""
        return {self.cache_key} if self.cache_key else set()

    @property
    def missing(self) -> int:
        """Number of tokens to compute before the next one can be sampled."""
        return len(self.tokens) - self.computed

    @property
    def ahead(self) -> int:
        """Number of tokens that a step may compute: all missing ones, or those up to the next mark."""
        return min((mark for mark in self.marks if mark > self.computed), default=len(self.tokens)) - self.computed

    @property
    def decoding(self) -> bool:
        """Whether only the newest token is missing, and it was generated."""
        return self.missing == 1 and len(self.tokens) > self.prompt_tokens

    @property
    def generated(self) -> int:
        """Number of tokens generated so far."""
        return len(self.tokens) - self.prompt_tokens
