"""A running response: converts the chat core's events to output items and their events, and stores the final state."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from services.errors import AllmError
from services.text.conversation import AnswerEvent, CallArguments, CallStarted, ReasoningDelta, TextDelta, Tool
from services.text.engine.messages import TokenLogprob
from services.text.responses.response import (
    Delta,
    DeltaDone,
    Event,
    FunctionCallItem,
    Item,
    ItemAdded,
    ItemDone,
    ItemStatus,
    MessageItem,
    Part,
    PartAdded,
    PartDone,
    Progress,
    ReasoningItem,
    Response,
    Status,
    failure_of,
    new_id,
)
from services.text.running_answer import Completion

Keep = Callable[[Response], Awaitable[None]]
Kind = Literal["text", "reasoning", "arguments"]


class Run:
    """One running response. `response` is its current state."""

    def __init__(
        self,
        response: Response,
        completion: Completion,
        first: Sequence[tuple[int, AnswerEvent]],
        keep: Keep | None,
        opening: Sequence[Literal["created", "in_progress"]] = ("created", "in_progress"),
    ) -> None:
        """`first`: events that the completion has already produced. `keep` stores the final state before it is sent;
        None: the caller stores it.
        """
        self.response = response
        self.failure: AllmError | None = None
        self._completion = completion
        self._first: Sequence[tuple[int, AnswerEvent]] = first
        self._keep = keep
        self._opening = opening
        self._output = Output(response.settings.tools)

    @property
    def ignored(self) -> Sequence[str]:
        """The parameters of the request that have no effect on the answer."""
        return self._completion.ignored

    async def events(self) -> AsyncIterator[list[Event]]:
        """Yields all events in batches of those that are ready together, and an empty batch after each SILENT_SECONDS
        without any. An error becomes the last event.
        """
        batch: list[Event] = [Progress(step, self.response) for step in self._opening]
        if not self._first:  # they may take long
            yield batch
            batch = []
        while True:
            silent = False
            try:
                silent = await self._advance(batch)
            except AllmError as error:
                await self._fail(error, batch)
            if batch or silent:
                yield batch
            if not self.response.running:
                return
            batch = []

    async def whole(self) -> Response:
        """Waits for the end and returns the response. Raises the error of a failed response."""
        async for _ in self.events():
            pass
        if self.failure:
            raise self.failure
        return self.response

    async def _advance(self, batch: list[Event]) -> bool:
        """Adds the next events to the batch. Returns whether SILENT_SECONDS have passed without one."""
        events = self._first or await self._completion.ready_soon()
        self._first = ()
        for _, event in events:
            batch += self._output.take(event)
        if not self._completion.finished:
            return not events
        usage = self._completion.usage
        if self._completion.choices[0].content.finish == "length":
            ended = self._ended("incomplete", usage=usage, incomplete="max_output_tokens")
        else:
            ended = self._ended("completed", usage=usage, completed=time.time())
        if self._keep:  # before the final event: its receiver may continue from the response immediately
            await self._keep(ended)
        self.response = ended
        batch.append(Progress("incomplete" if ended.incomplete else "completed", ended))
        return False

    async def _fail(self, error: AllmError, batch: list[Event]) -> None:
        self.failure = error
        batch += self._output.end("incomplete")
        self.response = self._ended("failed", failure=failure_of(error))
        with contextlib.suppress(AllmError):  # the store itself may have failed
            if self._keep:
                await self._keep(self.response)
        batch.append(Progress("failed", self.response))

    def _ended(self, status: Status, **changes: object) -> Response:
        output = tuple(self._output.items)
        ended: Response = msgspec.structs.replace(self.response, status=status, output=output, **changes)
        return ended


@dataclass(slots=True)
class _Open:
    """The item that the model is writing."""

    kind: Kind
    id: str
    call_id: str = ""
    name: str = ""
    namespace: str = ""
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def item(self, status: ItemStatus) -> Item:
        text = "".join(self.text)
        if self.kind == "reasoning":
            return ReasoningItem(id=self.id, text=text, status=status)
        if self.kind == "arguments":
            return FunctionCallItem(
                id=self.id,
                call_id=self.call_id,
                name=self.name,
                namespace=self.namespace,
                arguments=text,
                status=status,
            )
        part = Part(text=text, logprobs=tuple(self.logprobs))
        return MessageItem(id=self.id, role="assistant", content=(part,), status=status)


class Output:
    """The output of one response. `items` holds the finished items."""

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """`tools`: those that the model may call."""
        self._members = {tool.name: (tool.namespace.name, tool.member) for tool in tools if tool.namespace}
        self.items: list[Item] = []
        self._open: _Open | None = None
        # Leading white space: it belongs to a message only if text follows.
        self._held: list[TextDelta] = []

    def take(self, event: AnswerEvent) -> list[Event]:
        """Returns the events for one event of the chat core."""
        if isinstance(event, TextDelta):
            return self._text(event)
        if isinstance(event, ReasoningDelta):
            opened = self._turn_to("reasoning", "rs") if self._kind != "reasoning" else []
            return [*opened, self._delta(event.text)]
        if isinstance(event, CallStarted):
            self._held.clear()
            return self._turn_to("arguments", "fc", event.id, event.name)
        if isinstance(event, CallArguments):
            return [self._delta(event.text)]
        return self.end("incomplete" if event.reason == "length" else "completed")

    def end(self, status: ItemStatus) -> list[Event]:
        """Closes the open item. An empty answer becomes an empty message, unless it was cut off."""
        events: list[Event] = []
        if not self.items and self._open is None and (status == "completed" or self._held):
            events += self._turn_to("text", "msg")
        if self._kind == "text":
            events += self._release()
        self._held.clear()
        return events + self._close(status)

    @property
    def _kind(self) -> Kind | None:
        return self._open.kind if self._open else None

    def _text(self, event: TextDelta) -> list[Event]:
        self._held.append(event)
        if self._kind == "text":
            return self._release()
        if not event.text.strip():
            return []
        return [*self._turn_to("text", "msg"), *self._release()]

    def _release(self) -> list[Event]:
        events: list[Event] = [self._delta(held.text, held.logprobs) for held in self._held]
        self._held.clear()
        return events

    def _turn_to(
        self, kind: Kind, prefix: Literal["msg", "rs", "fc"], call_id: str = "", name: str = ""
    ) -> list[Event]:
        """Closes the open item and opens another one."""
        events = self._close("completed")
        namespace, name = self._members.get(name, ("", name))
        opened = self._open = _Open(kind, new_id(prefix), call_id, name, namespace)
        item = opened.item("in_progress")
        index = len(self.items)
        events.append(ItemAdded(index, item))
        if kind != "arguments":
            events.append(PartAdded(index, item))
        return events

    def _delta(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> Delta:
        opened = self._open
        if opened is None:
            raise AssertionError("the chat core opens a call before it emits the arguments")
        opened.text.append(text)
        opened.logprobs += logprobs
        return Delta(len(self.items), opened.kind, opened.id, text, logprobs)

    def _close(self, status: ItemStatus) -> list[Event]:
        opened, self._open = self._open, None
        if opened is None:
            return []
        index, item = len(self.items), opened.item(status)
        self.items.append(item)
        events: list[Event] = [DeltaDone(index, opened.kind, opened.id, "".join(opened.text), tuple(opened.logprobs))]
        if opened.kind != "arguments":
            events.append(PartDone(index, item))
        return [*events, ItemDone(index, item)]
