"""For how long a batch waits for the callers of the one before it: they often ask again once they have their images.

Without it, of four such callers the first to come back would have a batch of its own, the other three the next one, and
so on: two batches in the place of one.
"""

from __future__ import annotations

import time

SHARE = 0.1  # of the time that the batch before took: nobody waits longer than that for others
MOST_SECONDS = 1.0


class Reunion:
    """Counts who has asked again. A caller who is alone is never waited for."""

    def __init__(self) -> None:
        self._missing = 0
        self._until = 0.0

    def part(self, callers: int, seconds: float) -> None:
        """A batch is over, which took so long and ended the requests of so many callers."""
        self._missing = callers
        self._until = time.monotonic() + min(SHARE * seconds, MOST_SECONDS)

    def meet(self) -> None:
        """A request has come."""
        self._missing -= 1

    @property
    def seconds(self) -> float:
        """For how long the next batch may still wait; 0.0 when as many have come as had gone, or it is too late."""
        return max(0.0, self._until - time.monotonic()) if self._missing > 0 else 0.0
