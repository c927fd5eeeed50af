"""Grammars that answers must follow, by llguidance: masks of the tokens that may come next.

A runtime makes one compiler from its vocabulary. A constraint belongs to one request and advances only with sampled
tokens, also when the request loses its cells and is computed again.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from services.text.engine.messages import TokenLogprob
from services.text.engine.runtime import Sampled
from services.worker.messages import EngineError

if TYPE_CHECKING:
    from llguidance import LLMatcher

COMPILED_GRAMMARS = 8  # cached, with up to 20 MB each: callers mostly send the same schema again
MESSAGE_CHARACTERS = 300  # of llguidance's reason for refusing a grammar
# Limits of a caller's grammar. A lexer state takes up to 2 kB, a unit of a step's fuel about 70 nanoseconds. The first
# two bound the compilation to 0.4 seconds and 40 MB; 128 tools with 8 parameters each need a quarter of both. Masks and
# tokens are computed in the loop that all requests share: the last two bound those of one token to about 0.1 seconds.
LIMITS: Mapping[str, Any] = MappingProxyType(
    {
        "initial_lexer_fuel": 200_000,
        "max_grammar_size": 50_000,
        "max_lexer_states": 50_000,
        "step_lexer_fuel": 200_000,
        "step_max_items": 5_000,
    }
)
# Processor time for the masks and tokens of an answer, and more for each token; ordinary grammars take 0.05 ms a token.
ANSWER_SECONDS = 0.5
TOKEN_SECONDS = 0.001
# Control tokens that grammars write as text. The marks of tool calls and thoughts are control tokens in some models of
# a family and text in others, and a dialect has one grammar for all of them.
MARKS = re.compile(
    rb"</?(?:tool_call|tool_response|think|arg_key|arg_value|TOOLCALL|TOOLRESPONSE|function|parameter)>"
    rb"|\[/?(?:TOOL_CALLS|ARGS|CALL_ID|THINK)\]"
)

# Parts of llguidance's errors about a limit, or about a fault of its own.
_TOO_COMPLEX = ("too big (limit", "Too many items", "fuel exhausted", "panicked at", "assertion failed")


class Constraint:
    """The grammar state of one request's answer."""

    __slots__ = ("_clock", "_left", "_matcher", "last", "token_seconds")

    def __init__(self, matcher: LLMatcher, clock: Callable[[], float] = time.thread_time) -> None:
        """`clock`: seconds of processor time of the thread."""
        self._matcher = matcher
        self._clock = clock
        self._left = ANSWER_SECONDS
        self.last = 0.0  # when the last token was found, by this clock
        self.token_seconds = 0.0  # for finding it

    def fill(self, address: int, size: int) -> None:
        """Writes the mask of allowed next tokens to `size` bytes: one bit per token, lowest bits first."""
        began = self._clock()
        self._matcher.unsafe_compute_mask_ptr(address, size)
        self.last = self._clock()
        self.token_seconds = self.last - began
        self._left -= self.token_seconds

    def consume(self, token: int) -> None:
        """Advances by a sampled token."""
        began = self._clock()
        self._matcher.consume_token(token)
        seconds = self._clock() - began
        self.token_seconds += seconds
        self._left += TOKEN_SECONDS - seconds

    def accept(self, token: int, logprob: TokenLogprob | None) -> Sampled | EngineError:
        """Advances by a sampled token. Returns the step's outcome for it, or the fault."""
        self.consume(token)
        return self.fault or Sampled(token, logprob, self.complete)

    @property
    def complete(self) -> bool:
        """True if the answer is complete and no token can follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def fault(self) -> EngineError | None:
        """The error that stopped the grammar, which is one of the limits above, or None. The request ends with it."""
        if self._left > 0 and not self._matcher.is_error():
            return None
        message = "'response_format' is too complex: the answer cannot continue within it"
        return EngineError("INVALID_REQUEST", message, "response_format")


def in_one_line(error: str) -> str:
    """Returns llguidance's reason for refusing a grammar on one line. Its inner errors come with a backtrace."""
    if any(words in error for words in _TOO_COMPLEX):
        return "it is too complex for the compiler"
    return " ".join(error.split())[:MESSAGE_CHARACTERS]


def no_token() -> EngineError:
    """Returns the error for a mask that allows no token."""
    message = "'response_format' asks for text that this model has no token for"
    return EngineError("INVALID_REQUEST", message, "response_format")


class Vocabulary:
    """A model's tokens in the form that llguidance reads."""

    def __init__(
        self, tokens: Sequence[bytes], control: Sequence[int], ends: Sequence[int], tokenize: Callable[[str], list[int]]
    ) -> None:
        """Takes the text of each token, the control tokens, and those that end a turn."""
        self.tokens = tokens
        self.special_token_ids = control
        self.ends = ends
        self.eos_token_id = ends[0]
        self.bos_token_id = None
        self._tokenize = tokenize

    def __call__(self, text: bytes) -> list[int]:
        """Tokenizes a text. Only llguidance's own checks call this."""
        return self._tokenize(text.decode(errors="replace"))


class GrammarCompiler:
    """Compiler of grammars for one vocabulary. Not thread-safe, but another thread may use its constraints.

    llguidance is imported here and not at the top, so that a runtime works on a machine without it.
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
        """Returns a constraint at the start of its grammar.

        Raises:
            EngineError: INVALID_REQUEST if the grammar has errors or is too complex.
        """
        return Constraint(self._matcher(grammar).deep_copy())

    def _compile(self, grammar: str) -> LLMatcher:
        matcher = self._new(grammar=grammar)
        if not matcher.is_error():
            matcher.compute_bitmask()  # often the slowest mask; all copies reuse it
        if matcher.is_error():
            message = f"'response_format' cannot be made into a grammar: {in_one_line(matcher.get_error())}"
            raise EngineError("INVALID_REQUEST", message, "response_format")
        return matcher
