"""How fast a worker ends requests while all its places are taken: what those who find no place are told to wait."""

from __future__ import annotations

import time
from collections import deque

KEPT = 64  # ends that the rate is taken from
LEAST = 3  # ends that make a rate


class CompletionRate:
    """Requests that a worker has ended, on a clock that stands still while it has places left.

    Else a quiet hour would make a fast worker look slow, and a single client a wide one.
    """

    def __init__(self, places: int) -> None:
        """`places`: requests that run at the same time."""
        self._places = places
        self._ends: deque[float] = deque(maxlen=KEPT)  # on the clock
        self._clock = 0.0  # seconds
        self._since: float | None = None  # when it was started; None: it stands still

    def count(self, requests: int, *, ended: bool = False) -> None:
        """So many requests are there from now on; `ended`: because one was done."""
        now = self._read()
        if ended and self._since is not None:
            self._ends.append(now)
        self._clock, self._since = now, time.monotonic() if requests >= self._places else None

    def seconds_for(self, requests: int) -> float | None:
        """How long so many requests take to end, in seconds; None while that is not known."""
        if len(self._ends) < LEAST:
            return None
        span = self._read() - self._ends[0]
        return requests * span / (len(self._ends) - 1)

    def _read(self) -> float:
        return self._clock + (time.monotonic() - self._since if self._since is not None else 0.0)
