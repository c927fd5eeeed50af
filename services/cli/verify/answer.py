"""A model's answer with its tokens, and a comparison of answers that tolerates rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from allm.text.v1 import chat_pb2

TIE = 0.5  # difference in log-probability below which rounding may swap two tokens
SHOWN = 40  # characters of an answer that a message shows


@dataclass(frozen=True, slots=True)
class Scored:
    """A token with its log-probability, and the likeliest tokens at its position."""

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()

    @classmethod
    def of(cls, token: chat_pb2.TokenLogprob) -> Scored:
        """Converts a token of the API."""
        return cls(token.token, token.logprob, tuple((each.token, each.logprob) for each in token.top))

    @property
    def tied(self) -> bool:
        """True if the two likeliest tokens were about equally likely."""
        return len(self.top) > 1 and self.top[0][1] - self.top[1][1] < TIE


@dataclass(slots=True, kw_only=True)
class Answer:
    """A model's answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)  # names and arguments
    finish: chat_pb2.FinishReason.ValueType = chat_pb2.FINISH_REASON_UNSPECIFIED
    tokens: list[Scored] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def bits_per_byte(self) -> float:
        """Returns the answer's surprisal per byte: 0 is certainty, 8 is noise; NaN without log-probabilities."""
        size = sum(len(token.token) for token in self.tokens)
        return -sum(token.logprob for token in self.tokens) / math.log(2) / size if size else math.nan


def difference(one: Answer, other: Answer) -> str:
    """Describes the first difference of two answers; empty if they are equal, or differ only by a tie of two tokens."""
    pairs = zip(one.tokens, other.tokens, strict=False)
    for at, (mine, theirs) in enumerate(pairs):
        if mine.token != theirs.token:
            return "" if mine.tied or theirs.tied else _difference_at(at, mine.token, theirs.token)
    short, long = sorted((one.tokens, other.tokens), key=len)
    if len(short) < len(long):
        at = len(short)
        return "" if long[at].tied else _difference_at(at, b"the end", long[at].token)
    if (one.text, one.reasoning, one.finish) != (other.text, other.reasoning, other.finish):
        return f"the same tokens became the texts {_show(one)} and {_show(other)}"
    return ""


def first_difference(answers: Sequence[tuple[Answer, Answer]]) -> str:
    """Describes the first pair that differs: which one, and how; empty if none does."""
    for number, (one, other) in enumerate(answers, 1):
        if found := difference(one, other):
            return f"answer {number} of {len(answers)}: {found}"
    return ""


def _difference_at(at: int, one: bytes, other: bytes) -> str:
    texts = [text.decode(errors="replace")[:SHOWN] for text in (one, other)]
    return f"they differ at token {at + 1}, {texts[0]!r} and {texts[1]!r}, where no two were about equally likely"


def _show(answer: Answer) -> str:
    ended = chat_pb2.FinishReason.Name(answer.finish).removeprefix("FINISH_REASON_").lower()
    return f"{answer.text[:SHOWN]!r} ({len(answer.text)} characters, {ended})"
