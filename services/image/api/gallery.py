"""All that came of a request: what it was drawn with, its pictures in order, and what it took."""

from __future__ import annotations

from collections.abc import AsyncIterator

from services.errors import Internal
from services.image.images import Done, Drawn, Event, Finished, Started


class Gallery:
    """Gathers the events of a request."""

    def __init__(self) -> None:
        self._started: Started | None = None
        self._finished: Finished | None = None
        self._drawn: dict[int, Drawn] = {}

    def add(self, event: Event) -> None:
        """Takes the next event."""
        if isinstance(event, Started):
            self._started = event
        elif isinstance(event, Done):
            self._drawn[event.drawn.index] = event.drawn
        elif isinstance(event, Finished):
            self._finished = event

    async def gather(self, events: AsyncIterator[Event]) -> None:
        """Takes all events."""
        async for event in events:
            self.add(event)

    @property
    def started(self) -> Started:
        """What it was drawn with."""
        if self._started is None:
            raise Internal("the model has not told what it draws with")
        return self._started

    @property
    def finished(self) -> Finished:
        """What it took."""
        if self._finished is None:
            raise Internal("the model has not come to an end")
        return self._finished

    @property
    def pictures(self) -> list[Drawn]:
        """The pictures that are done, in order."""
        return [self._drawn[index] for index in sorted(self._drawn)]

    @property
    def facts(self) -> dict[str, int]:
        """What the log tells of it."""
        done = self.finished
        return {"prompt": done.prompt_tokens, "images": len(self._drawn), "steps": done.steps}
