"""The watchdog of a worker: when it counts as stalled, and what happens then."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

WATCH_INTERVAL = 1.0  # seconds between two checks


class Watchdog:
    """Ends a worker that owes answers and makes no progress: the only sure way out of hung native code.

    It takes no lock, waits for no other task, and survives every error.
    """

    def __init__(
        self, model_id: str, limit: float, *, owed: Callable[[], float | None], stall: Callable[[float], None]
    ) -> None:
        """`limit`: seconds without progress after which `stall` is called. `owed` returns since when the worker owes
        progress, on the monotonic clock; None if it owes none.
        """
        self._model_id = model_id
        self._limit = limit
        self._owed = owed
        self._stall = stall
        self._progress = time.monotonic()

    def progress(self) -> None:
        """Records that the worker has made progress."""
        self._progress = time.monotonic()

    async def run(self, alive: Callable[[], bool]) -> None:
        """Checks the worker once a second while it is alive."""
        interval = min(WATCH_INTERVAL, self._limit / 2)
        looked = time.monotonic()
        while alive():
            await asyncio.sleep(interval)
            now = time.monotonic()
            try:
                if now - looked > interval + self._limit / 2:
                    # This process itself was suspended: messages that arrived meanwhile are still unread.
                    self._progress = now
                if self._stalls(now):
                    self._stall(self._limit)
            except Exception:
                log.exception("the watchdog continues after an error", extra={"model": self._model_id})
            looked = now

    def _stalls(self, now: float) -> bool:
        owed = self._owed()
        return owed is not None and now - max(self._progress, owed) > self._limit
