"""The order of images: clients take turns, and so do the requests of a client, however many images each has."""

from __future__ import annotations

from collections.abc import Iterable

from services.image.engine.generation import Generation


class Turns:
    """Remembers when each client and each request was last chosen."""

    def __init__(self) -> None:
        self._count = 0
        self._clients: dict[str, int] = {}
        self._requests: dict[int, int] = {}

    def next(self, waiting: Iterable[Generation]) -> Generation | None:
        """Chooses the request whose client was served least recently, then the request served least recently; ties go
        to the oldest."""
        chosen = min(waiting, key=self._rank, default=None)
        if chosen is not None:
            self._count += 1
            self._clients[chosen.client] = self._requests[chosen.number] = self._count
        return chosen

    def forget(self, gone: Generation, left: Iterable[Generation]) -> None:
        """Forgets a finished request; `left` are the remaining ones."""
        self._requests.pop(gone.number, None)
        if all(other.client != gone.client for other in left):
            self._clients.pop(gone.client, None)

    def _rank(self, one: Generation) -> tuple[int, int, int]:
        return self._clients.get(one.client, 0), self._requests.get(one.number, 0), one.number
