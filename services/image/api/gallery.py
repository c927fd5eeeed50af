"""The complete result of a request: its parameters, its pictures in order, and its usage."""

from __future__ import annotations

from collections.abc import AsyncIterator

from services.errors import Internal
from services.image.images import Done, Drawn, Event, Finished, Started


class Gallery:
    """Collects the events of a request."""

    def __init__(self) -> None:
        self._started: Started | None = None
        self._finished: Finished | None = None
        self._drawn: dict[int, Drawn] = {}

    def add(self, event: Event) -> None:
        """Adds the next event."""
        if isinstance(event, Started):
            self._started = event
        elif isinstance(event, Done):
            self._drawn[event.drawn.index] = event.drawn
        elif isinstance(event, Finished):
            self._finished = event

    async def gather(self, events: AsyncIterator[Event]) -> None:
        """Adds all events."""
        async for event in events:
            self.add(event)

    @property
    def started(self) -> Started:
        """The Started event, with the parameters. Raises Internal if it is missing."""
        if self._started is None:
            raise Internal("the model has not told what it draws with")
        return self._started

    @property
    def finished(self) -> Finished:
        """The Finished event, with the usage. Raises Internal if it is missing."""
        if self._finished is None:
            raise Internal("the model has not come to an end")
        return self._finished

    @property
    def pictures(self) -> list[Drawn]:
        """The finished pictures, in order."""
        return [self._drawn[index] for index in sorted(self._drawn)]

    @property
    def facts(self) -> dict[str, int]:
        """The usage, for the request log."""
        done = self.finished
        return {"prompt": done.prompt_tokens, "images": len(self._drawn), "steps": done.steps}
