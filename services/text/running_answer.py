"""Running answers: convert the worker's pieces of text to events, one answer or several to the same request."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from services.text.conversation import (
    AnswerEvent,
    CallArguments,
    CallEnded,
    CallStarted,
    Finished,
    FinishReason,
    ParsedEvent,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    Usage,
)
from services.text.engine.messages import Piece, TokenLogprob
from services.text.loaded import Answer
from services.text.parsers.dialect import Parser

SILENT_SECONDS = 15.0  # a caller that streams hears within them that its request still runs


@dataclass(slots=True)
class AnswerContent:
    """The accumulated content of an answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # of a scored prompt; the first is 0, not known
    finish: FinishReason | None = None


class Choice:
    """A reader of one answer. Awaiting `ready` extends `content`."""

    def __init__(
        self, answer: Answer, parser: Parser | None, *, parallel: bool = True, prompt_only: bool = False
    ) -> None:
        """`parser`: reads the markup of the answer; None: it has none. `parallel`: calls after the first one count.

        `prompt_only`: the answer, of one token, is only there to end the prompt, and is dropped.
        """
        self.content = AnswerContent()
        self.usage = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)  # at the first piece, then at the end
        self._answer = answer
        self._parser = parser
        self._parallel = parallel
        self._prompt_only = prompt_only
        self._tokens = 0
        self._reasoning_tokens = 0

    @property
    def computed(self) -> tuple[int, int]:
        """The token counts of the prompt and of the answer so far, including unread tokens."""
        return self._answer.prompt_tokens, self._answer.tokens

    @property
    def prompt(self) -> str:
        """The text of a prompt given as tokens, or scored; available with the first part of the answer."""
        return self._answer.prompt

    async def accepted(self) -> int:
        """Waits until the prompt is tokenized and returns its token count. Raises the request's error."""
        return await self._answer.accepted()

    async def ready(self) -> list[AnswerEvent]:
        """Waits for events, `Finished` last; may return none while text is held back. Raises the request's error."""
        events: list[AnswerEvent] = []
        for piece in await self._answer.ready():
            events += self._read(piece)
        return events

    def _read(self, piece: Piece) -> list[AnswerEvent]:
        parsed: list[ParsedEvent] = []
        self.content.prompt_logprobs += piece.prompt_logprobs or ()
        if self._prompt_only:
            finish: Literal["length"] | None = "length" if piece.finish else None
            piece = replace(piece, text="", finish=finish, completion_tokens=0, logprobs=None)
        if piece.text:
            parsed += self._parser.push(piece.text) if self._parser else [TextDelta(piece.text)]
        if piece.finish and self._parser:
            parsed += self._parser.finish(cut=piece.finish == "length")
        new = piece.completion_tokens - self._tokens
        first, self._tokens = not self._tokens, piece.completion_tokens
        if parsed and all(isinstance(event, ReasoningDelta) for event in parsed):
            self._reasoning_tokens += new
        if first or piece.finish:
            self.usage = self._usage(piece)
        events = [recorded for event in parsed if (recorded := self._record(event))]
        events = self._with_logprobs(events, tuple(piece.logprobs or ()))
        if piece.finish:
            events.append(self._finish(piece))
        return events

    def _record(self, event: ParsedEvent) -> AnswerEvent | None:
        """Adds an event to `content`. Returns it, with an id if it starts a call; returns None if it ends one."""
        content = self.content
        if isinstance(event, CallEnded):
            return None
        if not self._parallel and isinstance(event, CallStarted | CallArguments) and event.index:
            return None
        if isinstance(event, TextDelta):
            content.text += event.text
        elif isinstance(event, ReasoningDelta):
            content.reasoning += event.text
        elif isinstance(event, CallStarted):
            event = replace(event, id=f"call_{secrets.token_hex(12)}")
            content.calls.append(ToolCall(id=event.id, name=event.name, arguments=""))
        else:
            call = content.calls[event.index]
            content.calls[event.index] = replace(call, arguments=call.arguments + event.text)
        return event

    def _with_logprobs(self, events: list[AnswerEvent], logprobs: tuple[TokenLogprob, ...]) -> list[AnswerEvent]:
        """Attaches logprobs to the text that they belong to; those of markup are attached to the next text."""
        if not logprobs:
            return events
        self.content.logprobs += logprobs
        for at, event in enumerate(events):
            if isinstance(event, TextDelta):
                return [*events[:at], TextDelta(event.text, logprobs), *events[at + 1 :]]
        return [*events, TextDelta("", logprobs)]

    def _finish(self, piece: Piece) -> Finished:
        called = bool(self.content.calls) and piece.finish == "stop"
        self.content.finish = "tool_calls" if called else piece.finish
        return Finished(self.content.finish or "stop", piece.stop)

    def _usage(self, piece: Piece) -> Usage:
        return Usage(
            prompt_tokens=self._answer.prompt_tokens,
            cached_tokens=piece.cached_tokens,
            completion_tokens=piece.completion_tokens,
            reasoning_tokens=self._reasoning_tokens,
            accepted_tokens=piece.accepted_tokens,
            rejected_tokens=piece.rejected_tokens,
        )


class Completion:
    """The choices of a request, the same number for each prompt. Awaiting `ready` extends `choices[i].content`."""

    def __init__(
        self,
        model_id: str,
        choices: Sequence[Choice],
        prefix: str = "chatcmpl",
        prompts: int = 1,
        ignored: Sequence[str] = (),
        begun: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`ignored`: parameters of the request that have no effect on the answer.

        `begun` is called once all prompts are computed.
        """
        self.id = f"{prefix}-{secrets.token_hex(16)}"
        self.created = int(time.time())
        self.model_id = model_id
        self.choices = choices
        self.ignored = ignored
        self._begun = begun
        each = len(choices) // prompts
        self._prompts = [choices[at : at + each] for at in range(0, len(choices), each)]
        self._pending: dict[asyncio.Task[list[AnswerEvent]], int] = {}

    @property
    def finished(self) -> bool:
        """True if every choice is complete."""
        return all(choice.content.finish for choice in self.choices)

    @property
    def usage(self) -> Usage:
        """The token usage of the request. Each prompt counts once, and the tokens of every choice count."""
        usages = [choice.usage for choice in self.choices]
        return Usage(
            prompt_tokens=sum(max(choice.usage.prompt_tokens for choice in each) for each in self._prompts),
            cached_tokens=sum(min(choice.usage.cached_tokens for choice in each) for each in self._prompts),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
            accepted_tokens=sum(usage.accepted_tokens for usage in usages),
            rejected_tokens=sum(usage.rejected_tokens for usage in usages),
        )

    @property
    def computed(self) -> int:
        """The number of tokens computed for the request so far. Each prompt counts once."""
        prompt_tokens = sum(max(choice.computed[0] for choice in each) for each in self._prompts)
        return prompt_tokens + sum(choice.computed[1] for choice in self.choices)

    async def ready(self) -> list[tuple[int, AnswerEvent]]:
        """Waits for events and returns them with their choice index; empty only at the end. Raises a choice's error."""
        events: list[tuple[int, AnswerEvent]] = []
        while not events and not self.finished:
            events = await self._next()
            if self._begun and all(choice.usage.prompt_tokens for choice in self.choices):
                begun, self._begun = self._begun, None
                await begun()
        return events

    async def ready_soon(self) -> list[tuple[int, AnswerEvent]]:
        """As `ready`, but returns none after SILENT_SECONDS without an event."""
        try:
            async with asyncio.timeout(SILENT_SECONDS):
                return await self.ready()
        except TimeoutError:
            return []

    async def whole(self) -> None:
        """Waits until every choice is complete."""
        while not self.finished:
            await self.ready()

    async def close(self) -> None:
        """Cancels pending reads."""
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)

    async def _next(self) -> list[tuple[int, AnswerEvent]]:
        if len(self.choices) == 1:  # the most frequent case, so it creates no tasks
            return [(0, event) for event in await self.choices[0].ready()]
        waited_for = set(self._pending.values())
        for index, choice in enumerate(self.choices):
            if not choice.content.finish and index not in waited_for:
                self._pending[asyncio.create_task(choice.ready())] = index
        done, _ = await asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)
        found: list[tuple[int, AnswerEvent]] = []
        for task in sorted(done, key=lambda task: self._pending[task]):
            index = self._pending.pop(task)
            found += [(index, event) for event in task.result()]
        return found
