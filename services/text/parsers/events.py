"""The events of an answer, from a dialect's parser to the wire formats."""

from __future__ import annotations

from dataclasses import dataclass

from services.text.conversation import FinishReason
from services.text.engine.messages import TokenLogprob


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's reasoning before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer's text. A parser's text is never empty; a running answer's may be if there are logprobs."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The model calls one of the tools; its arguments follow."""

    index: int  # among the answer's calls, from 0
    name: str
    id: str = ""  # empty in a parser's event


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text for the caller. Never empty."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The end of a call. Truncated arguments are not complete JSON."""

    index: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete."""

    reason: FinishReason


ParsedEvent = ReasoningDelta | TextDelta | CallStarted | CallArguments | CallEnded
AnswerEvent = ReasoningDelta | TextDelta | CallStarted | CallArguments | Finished  # of a running answer
