"""Fair turns: clients take turns, and so do the requests of a client, whatever amount one of them has sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Waits(Protocol):
    """A request that waits for a turn."""

    @property
    def request(self) -> int:
        """Id; rises with every request."""

    @property
    def client(self) -> str:
        """The client of the request."""


W = TypeVar("W", bound=Waits)


class Turns:
    """The latest turns of clients and requests."""

    def __init__(self) -> None:
        self._now = 0
        self._clients: dict[str, int] = {}
        self._requests: dict[int, int] = {}

    def next(self, waiting: Iterable[W]) -> W | None:
        """Picks the client, then its request, that waited longest for a turn; the oldest of several. Takes the turn.

        A client that never had a turn comes first.
        """
        chosen = min(waiting, key=self._rank, default=None)
        if chosen is not None:
            self._now += 1
            self._clients[chosen.client] = self._requests[chosen.request] = self._now
        return chosen

    def forget(self, gone: Waits, left: Iterable[Waits]) -> None:
        """Forgets a request that is over; `left` are the remaining ones."""
        self._requests.pop(gone.request, None)
        if all(other.client != gone.client for other in left):
            self._clients.pop(gone.client, None)

    def _rank(self, one: Waits) -> tuple[int, int, int]:
        return self._clients.get(one.client, 0), self._requests.get(one.request, 0), one.request
