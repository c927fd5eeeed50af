"""A request inside the batch loop, and its logprobs that wait until the text of their tokens is shown."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from services.text.engine.kv_cells import BLOCK, Holding
from services.text.engine.messages import TokenLogprob
from services.text.engine.runtime import PicturePart
from services.text.engine.sampling import SamplingParams
from services.text.engine.stop_strings import TextAssembler


class HeldLogprobs:
    """The queue of tokens' logprobs. A logprob leaves it when its token's first character is sent."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: deque[tuple[int, TokenLogprob]] = deque()

    def add(self, start: int, logprob: TokenLogprob) -> None:
        """Adds a token's logprob. `start` is the number of whole characters before the token."""
        self._held.append((start, logprob))

    def take(self, shown: int | None) -> list[TokenLogprob]:
        """Removes and returns the logprobs of the tokens that begin within the first `shown` characters; None: all."""
        taken = []
        while self._held and (shown is None or self._held[0][0] < shown):
            taken.append(self._held.popleft()[1])
        return taken


@dataclass(slots=True, eq=False)
class Sequence:
    """One request, whose prompt fits the context: its tokens, the number of computed tokens, and their cells."""

    request: int
    client: str
    tokens: list[int]  # prompt, then generated tokens
    params: SamplingParams
    constraint: Any | None = None  # from `Runtime.constraint`
    logprobs: int | None = None  # number of top alternatives to report per token; None: no logprobs
    special: bool = False  # whether control tokens show in the text
    cache_key: str = ""  # the client's name of the request's session, or empty
    deadline: float = math.inf  # on the monotonic clock; the caller has given up by then
    prediction: list[int] = field(default_factory=list)  # the answer that the caller expects; a source of guesses
    scored: bool = False  # whether to report the logprobs of the prompt's tokens too
    pictures: list[PicturePart] = field(default_factory=list)  # parts of its prompt, in order
    prompt_tokens: int = field(init=False)
    text: TextAssembler = field(init=False)
    held_logprobs: HeldLogprobs | None = field(init=False)
    sampler: Any = field(init=False)  # the loop sets this field and the next two when it queues the request
    last_token: int = field(init=False)  # total tokens (prompt included) at which the answer ends by length
    arrival: int = field(init=False)  # order of arrival
    held: bool = False  # whether the caller does not read; computation pauses
    phase: str = "queue"  # queue, prefill or decode
    id: int = -1  # sequence id in the runtime while it runs
    begun: bool = False  # whether the search for a reusable prefix is done
    computed: int = 0  # computed tokens, whose cells are filled
    cached: int = 0  # prompt tokens that came from the prefix cache
    holding: Holding = field(default_factory=Holding)
    drafter: Any | None = None  # the source of its guesses (speculation.py)
    drafted: int = 0  # guesses that steps have computed for it
    accepted: int = 0  # guesses that were right
    marks: list[int] = field(default_factory=list)  # positions of its prompt at which its state is kept
    scores: int = 0  # prompt tokens whose logprobs were sent

    def __post_init__(self) -> None:
        if self.constraint is not None:
            self.params = self.params.constrained()
        self.prompt_tokens = len(self.tokens)
        self.text = TextAssembler(self.params.stop)
        self.held_logprobs = None if self.logprobs is None else HeldLogprobs()

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
        """Number of tokens that a step may compute: up to the next mark, or the next start or end of a picture part."""
        places = [*self.marks, *(place for part in self.pictures for place in (part.start, part.end))]
        return min((place for place in places if place > self.computed), default=len(self.tokens)) - self.computed

    @property
    def inseparable(self) -> int:
        """Number of tokens that the next step must compute together; 0: any number."""
        part = self.next_part
        return part.count if part and part.whole and part.start == self.computed else 0

    @property
    def next_part(self) -> PicturePart | None:
        """The first picture part that is not computed to its end."""
        return next((part for part in self.pictures if part.end > self.computed), None)

    @property
    def unseen(self) -> bool:
        """True if the next token belongs to a picture part that is not encoded."""
        part = self.next_part
        return part is not None and part.start <= self.computed and part.embeddings is None

    def cut(self, tokens: int) -> int:
        """Returns how many of its first `tokens` can be reused: fewer, in whole blocks, if that would divide a whole
        part.
        """
        for part in reversed(self.pictures):
            if part.whole and part.start < tokens < part.end:
                tokens = part.start // BLOCK * BLOCK
        return tokens

    def pictured(self, start: int, end: int) -> bool:
        """Returns True if a picture part ends between two positions: who computes them has to encode it."""
        return any(start < part.end <= end for part in self.pictures)

    def shift(self, position: int) -> int:
        """Returns by how much rotary embeddings count less than the tokens before a position."""
        parts = (part for part in self.pictures if part.advance is not None and part.end <= position)
        return sum(part.count - (part.advance or 0) for part in parts)

    def drop_embeddings(self, end: int | None = None) -> None:
        """Frees the embeddings of picture parts that end at position `end` or before it; None: of all."""
        for part in self.pictures:
            if end is None or part.end <= end:
                part.embeddings = None

    @property
    def scoring(self) -> bool:
        """True if logprobs of its prompt are missing. It is then computed from its start."""
        return self.scored and self.scores < self.prompt_tokens

    @property
    def decoding(self) -> bool:
        """True if only the newest token is missing, and it was generated."""
        return self.missing == 1 and len(self.tokens) > self.prompt_tokens

    @property
    def token_seconds(self) -> float:
        """Processor time for finding the last token within the grammar."""
        return self.constraint.token_seconds if self.constraint is not None else 0.0

    @property
    def token_found(self) -> float:
        """When that was, by the processor time of the loop's thread."""
        return self.constraint.last if self.constraint is not None else 0.0

    @property
    def generated(self) -> int:
        """Number of tokens generated so far."""
        return len(self.tokens) - self.prompt_tokens
