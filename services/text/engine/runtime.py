"""What a runtime must do so that the batch loop can drive it: step a batch of sequences, and little more.

A runtime knows token ids, sequence ids and cells; it knows no request, no text beyond single tokens, no wire format.
All methods are called from one thread but `tokenize` and `constraint`, which another one calls beside a running `step`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.text.engine.messages import EngineOptions, Ready, TokenLogprob
from services.text.engine.sampling import SamplingParams
from services.worker.messages import EngineError

LEAST_STATES, MOST_STATES = 4, 64  # that are kept, whatever number of requests may run


class OutOfCells(Exception):
    """A step found no free cells; nothing was computed."""


@dataclass(slots=True)
class Span:
    """Tokens of one sequence to compute in a step."""

    sequence: int  # id in the runtime's cache
    start: int  # position of the first token
    tokens: Sequence[int]
    sampler: Any | None  # what `Runtime.sampler` returned, when the next token is wanted; None inside a prompt


@dataclass(frozen=True, slots=True)
class Sampled:
    """The next token of a sequence."""

    token: int
    logprob: TokenLogprob | None = None  # where the sampler was made with logprobs
    complete: bool = False  # whether the grammar allows nothing after this token


def check_bias(params: SamplingParams, vocabulary: int) -> None:
    """Raises EngineError (INVALID_REQUEST) when `logit_bias` names a token that a model of so many does not have."""
    bad = [token for token, _ in params.logit_bias if not 0 <= token < vocabulary]
    if bad:
        message = f"logit_bias names token {bad[0]}; this model's tokens are 0 to {vocabulary - 1}"
        raise EngineError("INVALID_REQUEST", message, "logit_bias")


def kept_states(max_sequences: int) -> int:
    """How many recurrent states a runtime has room for beside those of running requests: half as many.

    The state of a large model takes some 50 MB, however short its sequence is: far more than the keys of a short one.
    """
    return min(MOST_STATES, max(LEAST_STATES, max_sequences // 2))


class Runtime(Protocol):
    """A loaded model."""

    ready: Ready
    sequence_ids: int  # how many sequence ids there are: requests and prefix cache entries
    reuses_prefixes: bool  # whether part of a sequence can be copied to another (no recurrent state)
    reuses_states: bool  # whether only a whole sequence can be, with its recurrent state; then cells are shared
    shares_cells: bool  # whether a copy only marks the source's cells; else it takes as many cells again, and time

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a prompt; special tokens that are spelled out become single tokens."""

    def constraint(self, grammar: str) -> Any:
        """Where one request's answer is in its grammar. Raises EngineError when the grammar does not compile."""

    def piece(self, token: int, special: bool) -> bytes:
        """The bytes that a token adds to the text; a control token adds its name if `special`, but an end never."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends the model's turn."""

    def sampler(
        self, params: SamplingParams, prompt: Sequence[int], constraint: Any | None, logprobs: int | None
    ) -> Any:
        """State for sampling one request, with what `constraint` made or None, and how many likeliest tokens to tell.

        Raises EngineError (INVALID_REQUEST) for what this model cannot do.
        """

    def free_sampler(self, sampler: Any) -> None:
        """Gives up what `sampler` made."""

    def step(self, spans: Sequence[Span]) -> list[Sampled | EngineError | None]:
        """Computes all spans, ordered by sequence id; the next token of each span that has a sampler, else None.

        A span whose constraint has failed gets the error. Raises OutOfCells when the cache is full: then nothing was
        computed.
        """

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Lets the empty sequence `target` begin with the first `tokens` cells of `source`, which keeps them.

        Where `reuses_states`, those are always all of `source`.
        """

    def drop(self, sequence: int, start: int = 0) -> None:
        """Gives up a sequence's cells from position `start` on."""


Loader = Callable[[EngineOptions, Callable[[float], None]], Runtime]
