"""Recent events of this process's models, for observers of the machine: loads, evictions, deaths.

The metrics count the same events for Prometheus, but without their times.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from services.telemetry.figures import Event, Kind

MOST = 64  # unreported events that are kept: the latest


class ModelEvents:
    """The latest events, numbered from 1. `clock`: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._number = 0
        self._events: deque[tuple[int, Event]] = deque(maxlen=MOST)

    def record(self, kind: Kind, model: str, reason: str = "") -> None:
        """Records an event."""
        self._number += 1
        self._events.append((self._number, Event(at=self._clock(), kind=kind, model=model, reason=reason)))

    def after(self, number: int) -> tuple[tuple[int, Event], ...]:
        """Returns the events after number `number`, oldest first."""
        return tuple(entry for entry in self._events if entry[0] > number)


EVENTS = ModelEvents()  # of this process, like the metrics
