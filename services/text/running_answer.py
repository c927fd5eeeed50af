"""A running answer: converts the worker's pieces of text to events."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from services.text.conversation import FinishReason, ToolCall, Usage
from services.text.engine.messages import Piece, TokenLogprob
from services.text.loaded import Answer
from services.text.parsers.events import CallArguments, CallStarted, Content, Event, Reasoning
from services.text.parsers.parser import Parser


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer's text, which may be empty if there are only logprobs."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's reasoning before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The model calls a tool; its arguments follow."""

    index: int  # among the answer's calls, from 0
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of a call's arguments, as JSON text."""

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete."""

    reason: FinishReason


ChoiceEvent = TextDelta | ReasoningDelta | CallBegun | CallDelta | Finished


@dataclass(slots=True)
class Said:
    """The accumulated content of an answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishReason | None = None


class Choice:
    """A reader of one answer. Awaiting `ready` extends `said`."""

    def __init__(self, answer: Answer, parser: Parser) -> None:
        self.said = Said()
        self.usage = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)
        self._answer = answer
        self._parser = parser
        self._tokens = 0
        self._reasoning_tokens = 0

    @property
    def started(self) -> float:
        """The time at which the worker received the request, on the monotonic clock."""
        return self._answer.started

    @property
    def computed(self) -> tuple[int, int]:
        """The token counts of the prompt and of the answer so far, including unread tokens."""
        return self._answer.prompt_tokens, self._answer.tokens

    @property
    def prompt(self) -> str:
        """The text of a prompt given as tokens, available with the first part of the answer."""
        return self._answer.prompt

    async def ready(self) -> list[ChoiceEvent]:
        """Waits for events, `Finished` last; may return none while text is held back. Raises the request's error."""
        events: list[ChoiceEvent] = []
        for piece in await self._answer.ready():
            events += self._read(piece)
        return events

    def _read(self, piece: Piece) -> list[ChoiceEvent]:
        parsed = self._parser.push(piece.text) if piece.text else []
        if piece.finish:
            parsed += self._parser.finish(cut=piece.finish == "length")
        new = piece.completion_tokens - self._tokens
        self._tokens = piece.completion_tokens
        if parsed and all(isinstance(event, Reasoning) for event in parsed):
            self._reasoning_tokens += new
        events = [told for event in parsed for told in self._tell(event)]
        events = self._with_logprobs(events, tuple(piece.logprobs or ()))
        if piece.finish:
            events.append(self._finish(piece))
        return events

    def _tell(self, event: Event) -> list[ChoiceEvent]:
        said = self.said
        if isinstance(event, Content):
            said.text += event.text
            return [TextDelta(event.text)]
        if isinstance(event, Reasoning):
            said.reasoning += event.text
            return [ReasoningDelta(event.text)]
        if isinstance(event, CallStarted):
            call = ToolCall(id=f"call_{secrets.token_hex(12)}", name=event.name, arguments="")
            said.calls.append(call)
            return [CallBegun(event.index, call.id, call.name)]
        if isinstance(event, CallArguments):
            call = said.calls[event.index]
            arguments = call.arguments + event.text
            said.calls[event.index] = ToolCall(id=call.id, name=call.name, arguments=arguments)
            return [CallDelta(event.index, event.text)]
        return []

    def _with_logprobs(self, events: list[ChoiceEvent], logprobs: tuple[TokenLogprob, ...]) -> list[ChoiceEvent]:
        """Attaches logprobs to the text that they belong to; those of markup are attached to the next text."""
        if not logprobs:
            return events
        self.said.logprobs += logprobs
        for at, event in enumerate(events):
            if isinstance(event, TextDelta):
                return [*events[:at], TextDelta(event.text, logprobs), *events[at + 1 :]]
        return [*events, TextDelta("", logprobs)]

    def _finish(self, piece: Piece) -> Finished:
        called = bool(self.said.calls) and piece.finish == "stop"
        self.said.finish = "tool_calls" if called else piece.finish
        self.usage = Usage(
            prompt_tokens=self._answer.prompt_tokens,
            cached_tokens=piece.cached_tokens,
            completion_tokens=piece.completion_tokens,
            reasoning_tokens=self._reasoning_tokens,
        )
        return Finished(self.said.finish or "stop")
