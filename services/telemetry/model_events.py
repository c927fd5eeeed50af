"""What has happened to this process's models lately, for whoever follows the machine: loads, evictions, deaths.

Beside the metrics, which count the same for Prometheus without a time for each.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from services.telemetry.figures import Event, Kind

MOST = 64  # that wait to be told; of more, the latest


class ModelEvents:
    """The latest events, numbered from 1. `clock`: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._number = 0
        self._events: deque[tuple[int, Event]] = deque(maxlen=MOST)

    def tell(self, kind: Kind, model: str, reason: str = "") -> None:
        """Something has happened now."""
        self._number += 1
        self._events.append((self._number, Event(at=self._clock(), kind=kind, model=model, reason=reason)))

    def after(self, number: int) -> tuple[tuple[int, Event], ...]:
        """What came after the event of that number, oldest first."""
        return tuple(entry for entry in self._events if entry[0] > number)


EVENTS = ModelEvents()  # of this process, as the metrics are
