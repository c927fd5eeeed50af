"""A running response: converts the chat core's answer to events and stores the final state."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Literal

import msgspec

from services.errors import AllmError
from services.text.completion import Completion
from services.text.parsers.events import AnswerEvent
from services.text.responses.event import Event, Progress
from services.text.responses.output import Output
from services.text.responses.response import Response, Status, failure_of

Keep = Callable[[Response], Awaitable[None]]


class Run:
    """One running response. `response` is its current state."""

    def __init__(
        self,
        response: Response,
        completion: Completion,
        first: Sequence[tuple[int, AnswerEvent]],
        keep: Keep,
        opening: Sequence[Literal["created", "in_progress"]] = ("created", "in_progress"),
    ) -> None:
        """`first`: events that the completion has already produced; `keep` stores the final state before it is sent."""
        self.response = response
        self.failure: AllmError | None = None
        self._completion = completion
        self._first: Sequence[tuple[int, AnswerEvent]] = first
        self._keep = keep
        self._opening = opening
        self._output = Output()

    async def events(self) -> AsyncIterator[list[Event]]:
        """Yields all events in batches of those that are ready together. An error becomes the last event."""
        batch: list[Event] = [Progress(step, self.response) for step in self._opening]
        while True:
            try:
                await self._advance(batch)
            except AllmError as error:
                await self._fail(error, batch)
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

    async def _advance(self, batch: list[Event]) -> None:
        events = self._first or await self._completion.ready()
        self._first = ()
        for _, event in events:
            batch += self._output.take(event)
        if not self._completion.finished:
            return
        usage = self._completion.usage
        if self._completion.choices[0].content.finish == "length":
            ended = self._ended("incomplete", usage=usage, incomplete="max_output_tokens")
        else:
            ended = self._ended("completed", usage=usage, completed=time.time())
        await self._keep(ended)  # before the final event: its receiver may continue from the response immediately
        self.response = ended
        batch.append(Progress("incomplete" if ended.incomplete else "completed", ended))

    async def _fail(self, error: AllmError, batch: list[Event]) -> None:
        self.failure = error
        batch += self._output.end("incomplete")
        self.response = self._ended("failed", failure=failure_of(error))
        with contextlib.suppress(AllmError):  # the store itself may have failed
            await self._keep(self.response)
        batch.append(Progress("failed", self.response))

    def _ended(self, status: Status, **changes: object) -> Response:
        output = tuple(self._output.items)
        ended: Response = msgspec.structs.replace(self.response, status=status, output=output, **changes)
        return ended
