"""Grammars that answers must follow: which tokens may come next, through llguidance.

A runtime makes one compiler of its vocabulary. A constraint belongs to one request, whatever happens to the request's
cells: it moves on only with tokens that were sampled.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from services.text.engine.messages import TokenLogprob
from services.text.engine.runtime import Sampled
from services.worker.messages import EngineError

if TYPE_CHECKING:
    from llguidance import LLMatcher

COMPILED_GRAMMARS = 16  # that are remembered: callers mostly send the same schema again
MESSAGE_CHARACTERS = 300  # of llguidance's reason for refusing a grammar
# What a caller's grammar may take: a state of the lexer has up to 2 kB, a unit of fuel some 70 nanoseconds.
LIMITS: Mapping[str, Any] = MappingProxyType({"max_lexer_states": 50_000, "step_lexer_fuel": 200_000})
# Control tokens that grammars write like text: the marks of calls and thoughts are control tokens in some models of a
# family and text in others, and the dialects' grammars are the same for all.
MARKS = re.compile(
    rb"</?(?:tool_call|tool_response|think|arg_key|arg_value|TOOLCALL|TOOLRESPONSE|function|parameter)>"
    rb"|\[/?(?:TOOL_CALLS|ARGS|CALL_ID|THINK)\]"
)


class Constraint:
    """Where one request's answer is in its grammar."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def fill(self, address: int, size: int) -> None:
        """Writes which tokens may come next into `size` bytes: a bit each, the lowest bits first."""
        self._matcher.unsafe_compute_mask_ptr(address, size)

    def consume(self, token: int) -> None:
        """Moves on by a token that was sampled."""
        self._matcher.consume_token(token)

    def accept(self, token: int, logprob: TokenLogprob | None) -> Sampled | EngineError:
        """Moves on by a token that was sampled; what a step says of it."""
        self.consume(token)
        return self.fault or Sampled(token, logprob, self.complete)

    @property
    def complete(self) -> bool:
        """Whether the answer is whole and nothing can follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def fault(self) -> EngineError | None:
        """Why there is no going on: one of the limits above. Once set it stays."""
        if not self._matcher.is_error():
            return None
        message = "response_format is too complex: this answer cannot go on in it"
        return EngineError("INVALID_REQUEST", message, "response_format")


def no_token() -> EngineError:
    """For a mask that allows no token at all."""
    message = "response_format asks for text that this model has no token for"
    return EngineError("INVALID_REQUEST", message, "response_format")


class Vocabulary:
    """What llguidance must know of a model's tokens."""

    def __init__(
        self, tokens: Sequence[bytes], control: Sequence[int], ends: Sequence[int], tokenize: Callable[[str], list[int]]
    ) -> None:
        """Takes each token's text, which tokens are no text but markup, and which of these end a turn."""
        self.tokens = tokens
        self.special_token_ids = control
        self.ends = ends
        self.eos_token_id = ends[0]
        self.bos_token_id = None
        self._tokenize = tokenize

    def __call__(self, text: bytes) -> list[int]:
        """Token ids of a text; asked for by no more than llguidance's own checks."""
        return self._tokenize(text.decode(errors="replace"))


class GrammarCompiler:
    """Makes constraints for one vocabulary. Not thread-safe, but its constraints may be used by another thread.

    llguidance is imported here and not above, so that a runtime can be tried on a machine that lacks it.
    """

    def __init__(self, vocabulary: Vocabulary, limits: Mapping[str, Any] = LIMITS) -> None:
        from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper  # noqa: PLC0415

        wrapped = TokenizerWrapper(vocabulary)
        self._tokenizer = LLTokenizer(wrapped, n_vocab=len(vocabulary.tokens), eos_token=list(vocabulary.ends))
        self._new = functools.partial(
            LLMatcher, self._tokenizer, log_level=0, limits=LLParserLimits(**limits, verbose_errors=False)
        )
        self._matcher = functools.lru_cache(COMPILED_GRAMMARS)(self._compile)

    def compile(self, grammar: str) -> Constraint:
        """A constraint at the beginning of its grammar.

        Raises:
            EngineError: INVALID_REQUEST when the grammar has errors or is too complex.
        """
        return Constraint(self._matcher(grammar).deep_copy())

    def _compile(self, grammar: str) -> LLMatcher:
        matcher = self._new(grammar=grammar)
        if not matcher.is_error():
            matcher.compute_bitmask()  # the first mask is often the slowest, and the copies have it
        if matcher.is_error():
            reason = " ".join(matcher.get_error().split())[:MESSAGE_CHARACTERS]
            message = f"response_format cannot be made into a grammar: {reason}"
            raise EngineError("INVALID_REQUEST", message, "response_format")
        return matcher
