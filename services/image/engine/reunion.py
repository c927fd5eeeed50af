"""The wait of a batch for the previous batch's callers, who often send the next request once they have their images.

Without it, the first of four such callers to come back would get its own batch and the other three the next one, and so
on: two batches instead of one.
"""

from __future__ import annotations

import time

SHARE = 0.1  # longest wait, as a share of the previous batch's time
MOST_SECONDS = 1.0


class Reunion:
    """Counts the callers that have not come back yet. A batch never waits for a lone caller."""

    def __init__(self) -> None:
        self._missing = 0
        self._until = 0.0

    def part(self, callers: int, seconds: float) -> None:
        """Records the end of a batch: the number of requests it finished and the seconds it took."""
        self._missing = callers
        self._until = time.monotonic() + min(SHARE * seconds, MOST_SECONDS)

    def meet(self) -> None:
        """Counts a new request."""
        self._missing -= 1

    @property
    def seconds(self) -> float:
        """Seconds that the next batch may still wait; 0.0 if all callers are back or the time is up."""
        return max(0.0, self._until - time.monotonic()) if self._missing > 0 else 0.0
