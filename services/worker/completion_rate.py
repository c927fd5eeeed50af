"""The completion rate of a fully loaded worker, from which wait times for rejected requests are estimated."""

from __future__ import annotations

import time
from collections import deque

KEPT = 64  # most recent completions that the rate is computed from
LEAST = 3  # completions needed for a rate


class CompletionRate:
    """The completed requests of a worker, on a clock that stops while the worker has free slots.

    Otherwise a quiet hour, or a single client of a worker with many slots, would make a fast worker look slow.
    """

    def __init__(self, places: int) -> None:
        """`places`: requests that run concurrently."""
        self._places = places
        self._ends: deque[float] = deque(maxlen=KEPT)  # on the clock
        self._clock = 0.0  # seconds
        self._since: float | None = None  # when the clock was started; None: it is stopped

    def count(self, requests: int, *, ended: bool = False) -> None:
        """Sets the number of current requests; `ended`: one has just completed."""
        now = self._read()
        if ended and self._since is not None:
            self._ends.append(now)
        self._clock, self._since = now, time.monotonic() if requests >= self._places else None

    def seconds_for(self, requests: int) -> float | None:
        """Estimates the seconds that this many requests take to complete; None while there is no rate."""
        if len(self._ends) < LEAST:
            return None
        span = self._read() - self._ends[0]
        return requests * span / (len(self._ends) - 1)

    def _read(self) -> float:
        return self._clock + (time.monotonic() - self._since if self._since is not None else 0.0)
