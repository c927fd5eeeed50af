"""The interface between the batch loop and a text runtime, which steps batches of sequences.

A runtime knows token ids, sequence ids and cells, but no requests, no text beyond single tokens and no wire format. One
thread calls all methods except `tokenize`, `see` and `constraint`, which another thread may call during a `step`.

A picture in a prompt has tokens like text, so that positions, cells and prefix reuse work as they do for text. These
tokens are negative numbers made from the picture's digest: equal pictures have equal tokens, and no token of a
vocabulary is among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from services.text.engine.messages import DecoderReady, EngineOptions, Pixels, TokenLogprob
from services.text.engine.sampling import SamplingParams
from services.worker.messages import EngineError

LEAST_STATES, MOST_STATES = 4, 64  # bounds of the number of kept states
MOST_PICTURE_BYTES = 512 * 1024**2  # of scaled pictures that wait for their computation


class OutOfCells(Exception):
    """A step found no free cells and computed nothing."""


@dataclass(slots=True)
class Scoring:
    """Tokens of a prompt whose logprobs a step finds. Each follows the token at its place of the span."""

    tokens: Sequence[int]
    top: int  # number of most likely tokens to report at each place
    found: list[TokenLogprob] = field(default_factory=list)  # one for each token, from `Runtime.step`


def picture_token(digest: bytes, part: int) -> int:
    """Returns the number of the tokens of a picture's part, which is below 0."""
    return -1 - (int.from_bytes(digest, "big") << 16 | part)


@dataclass(slots=True, eq=False)
class PicturePart:
    """A part of a picture that a model encodes at once, and its place in a prompt."""

    start: int  # position of its first token in the prompt
    count: int  # number of its tokens, all with the same number, from `picture_token`
    source: Any  # from `Runtime.see`, for `Runtime.encode`
    embeddings: Any | None = None  # from `Runtime.encode` [count, width]; None: not computed, or no longer needed
    # Whether its tokens need one step together, and are reused only together: for attention in both directions, or if
    # they have no order. `Runtime.see` then raises CONTEXT_LENGTH_EXCEEDED for more than a step has room for.
    whole: bool = False
    # By how many positions its tokens advance those that follow, as rotary embeddings count them.
    advance: int | None = None  # None: `count`

    @property
    def end(self) -> int:
        """Position after its last token."""
        return self.start + self.count


@dataclass(slots=True)
class TokenSpan:
    """Tokens of one sequence to compute in a step: only tokens of the vocabulary, or only tokens of a picture part."""

    sequence: int  # id in the runtime's cache
    start: int  # position of the first token
    tokens: Sequence[int]
    sampler: Any | None  # from `Runtime.sampler`, to sample the next token; None inside a prompt
    drafts: int = 0  # tokens at the end that are guesses (speculation.py); only with a sampler
    scoring: Scoring | None = None  # only without guesses
    embeddings: Any | None = None  # of a picture part: those of these tokens [tokens, width]; then without a sampler
    part: PicturePart | None = None  # to which the embeddings belong
    shift: int = 0  # by how much `start`, as rotary embeddings count it, is less because of the picture parts before

    @property
    def rows(self) -> int:
        """Number of tokens, at the end, whose logits are needed."""
        if self.scoring:
            return len(self.tokens)
        return 0 if self.sampler is None else 1 + self.drafts

    def goes_on(self, place: int, outcome: Sampled | EngineError) -> bool:
        """Returns True if a token can be sampled after guess `place`: `outcome`, sampled before it, is that guess."""
        if place >= self.drafts or isinstance(outcome, EngineError) or outcome.complete:
            return False
        return outcome.token == self.tokens[len(self.tokens) - self.drafts + place]


@dataclass(frozen=True, slots=True)
class Sampled:
    """The next token of a sequence."""

    token: int
    logprob: TokenLogprob | None = None  # if the sampler was made with logprobs
    complete: bool = False  # whether the grammar allows nothing after this token


Outcomes = list[Sampled | EngineError]
"""The next tokens of a span, in order."""


def check_tokens(params: SamplingParams, vocabulary: int) -> None:
    """Raises EngineError (INVALID_REQUEST) if a parameter names a token outside of a vocabulary of this size."""
    named = {"logit_bias": [token for token, _ in params.logit_bias], "stop_token_ids": params.stop_token_ids}
    for param, tokens in named.items():
        bad = [token for token in tokens if not 0 <= token < vocabulary]
        if bad:
            message = f"{param} contains token {bad[0]}; this model's tokens are 0 to {vocabulary - 1}"
            raise EngineError("INVALID_REQUEST", message, param)


def kept_states(max_sequences: int) -> int:
    """Returns the number of recurrent states to keep in addition to those of running requests: half as many.

    A state of a large model takes about 50 MB even for a short sequence, far more than that sequence's keys.
    """
    return min(MOST_STATES, max(LEAST_STATES, max_sequences // 2))


class Runtime(Protocol):
    """A loaded model."""

    ready: DecoderReady
    sequence_ids: int  # number of sequence ids, for requests and prefix cache entries
    reuses_prefixes: bool  # whether a part of a sequence can be copied to another one (no recurrent state)
    reuses_states: bool  # whether only whole sequences can be copied, with their state; implies `shares_cells`
    shares_cells: bool  # whether a copy only marks the source's cells; otherwise it takes new cells and time

    def tokenize(self, text: str) -> list[int]:
        """Returns the token ids of a prompt. Spelled-out special tokens become single tokens."""

    def see(self, pixels: Pixels) -> tuple[list[int], list[PicturePart]]:
        """Returns the tokens that stand for a picture in a prompt, with the model's own around it, and its parts.

        The parts' `start` counts from the first of these tokens. Scales the picture to what the model takes, but
        encodes nothing. Raises EngineError (UNSUPPORTED for a model that does not see, INVALID_REQUEST).
        """

    def encode(self, part: PicturePart) -> None:
        """Computes the embeddings of a part. Raises EngineError if that is not possible, which ends the request."""

    def constraint(self, grammar: str) -> Any:
        """Returns the grammar state of one request's answer. Raises EngineError if the grammar does not compile."""

    def piece(self, token: int, special: bool) -> bytes:
        """Returns the bytes that a token adds to the text: a control token's name if `special`, nothing for an end."""

    def name(self, token: int) -> bytes:
        """Returns the bytes of a token, as logprobs show it: ends and control tokens by name."""

    def is_end(self, token: int) -> bool:
        """Returns True if the token ends the model's turn."""

    def sampler(
        self, params: SamplingParams, prompt: Sequence[int], constraint: Any | None, logprobs: int | None
    ) -> Any:
        """Returns the sampling state of one request. `logprobs`: number of most likely tokens to report; None: none.

        Raises EngineError (INVALID_REQUEST) for parameters that this model does not support.
        """

    def free_sampler(self, sampler: Any) -> None:
        """Frees a sampler."""

    def step(self, spans: Sequence[TokenSpan]) -> list[Outcomes]:
        """Computes all spans, ordered by sequence id. Returns the next tokens of each span: none without a sampler.

        With a sampler it is one, and one more after every guess that equals the token sampled before it, up to the
        first that does not. The caller drops the cells of the others. A span whose constraint has failed ends with the
        error. Fills the `scoring` of spans that have one. Raises OutOfCells if the cache is full; nothing was computed.
        """

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copies the first `tokens` cells of `source` to the empty sequence `target`.

        If `reuses_states`, these are always all cells of `source`.
        """

    def drop(self, sequence: int, start: int = 0) -> None:
        """Frees a sequence's cells from position `start` on."""


Loader = Callable[[EngineOptions, Callable[[float], None]], Runtime]
