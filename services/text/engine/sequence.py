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
    """One request: its tokens, how many of them are computed, and where their cells are."""

    request: int
    client: str
    tokens: list[int]  # prompt, then what was generated
    prompt_tokens: int
    last_token: int  # the answer ends by length when this many tokens (prompt included) are there
    params: SamplingParams
    sampler: Any
    text: TextAssembler
    logprobs: HeldLogprobs | None  # None where the request wants none
    special: bool  # whether control tokens show in the text
    cache_key: str  # what the client calls the session that it belongs to, or empty
    arrival: int  # order of arrival
    deadline: float = math.inf  # on the monotonic clock: then nobody waits any more
    held: bool = False  # whether its caller does not read: nothing more is computed
    phase: str = "queue"  # of its work: queue, prefill or decode
    id: int = -1  # sequence id in the runtime while it runs
    begun: bool = False  # whether its place is settled: what it reuses of others has been looked for
    computed: int = 0  # tokens whose cells are there
    cached: int = 0  # prompt tokens that came from the prefix cache
    holding: Holding = field(default_factory=Holding)
    marks: list[int] = field(default_factory=list)  # tokens of its prompt after which its state is to be kept

    @property
    def keys(self) -> set[str]:
        """What its client calls the sessions that it belongs to: one or none."""
        return {self.cache_key} if self.cache_key else set()

    @property
    def missing(self) -> int:
        """Tokens still to compute before the next one can be sampled."""
        return len(self.tokens) - self.computed

    @property
    def ahead(self) -> int:
        """Tokens that a step may compute: all that are missing, or those up to the next mark."""
        return min((mark for mark in self.marks if mark > self.computed), default=len(self.tokens)) - self.computed

    @property
    def decoding(self) -> bool:
        """Whether only the newest token is missing, and it was generated."""
        return self.missing == 1 and len(self.tokens) > self.prompt_tokens

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_tokens
