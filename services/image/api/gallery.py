"""The complete result of a request: its parameters, its pictures in order, and its usage."""

from __future__ import annotations

from collections.abc import AsyncIterator

from services.errors import Internal
from services.image.engine.messages import Finished
from services.image.images import Event, PictureFile, Started


class Gallery:
    """Collects the events of a request."""

    def __init__(self) -> None:
        self._started: Started | None = None
        self._finished: Finished | None = None
        self._pictures: dict[int, PictureFile] = {}

    def add(self, event: Event) -> None:
        """Adds the next event."""
        if isinstance(event, Started):
            self._started = event
        elif isinstance(event, PictureFile) and event.partial is None:
            self._pictures[event.index] = event
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
            raise Internal("the model has not accepted the request")
        return self._started

    @property
    def finished(self) -> Finished:
        """The Finished event, with the usage. Raises Internal if it is missing."""
        if self._finished is None:
            raise Internal("the model has not finished")
        return self._finished

    @property
    def pictures(self) -> list[PictureFile]:
        """The finished pictures, in order."""
        return [self._pictures[index] for index in sorted(self._pictures)]

    @property
    def facts(self) -> dict[str, int]:
        """The usage, for the request log."""
        steps = self.finished.steps
        return {"prompt": self.started.prompt_tokens, "images": len(self._pictures), "steps": steps}
