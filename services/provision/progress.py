"""The progress of a fetch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

INTERVAL = 0.2  # seconds between two reports


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes done in a stage, of the total."""

    stage: Literal["downloading", "verifying"]
    done: int
    total: int
    waits: bool = False  # for another fetch, in this or another process


class Meter:
    """The progress meter of a fetch: sums its threads' work, and reports it a few times a second."""

    def __init__(self, total: int, tell: Callable[[Progress], None]) -> None:
        self._total = total
        self._tell = tell
        self._downloaded: dict[str, int] = {}
        self._verified: dict[str, int] = {}
        self._sums = [0, 0]
        self._last = 0.0
        self._lock = threading.Lock()

    def downloaded(self, path: str, done: int) -> None:
        """Reports the bytes of a file that are on disk."""
        self._count(0, self._downloaded, path, done)

    def verified(self, path: str, done: int) -> None:
        """Reports the bytes of a file that are verified."""
        self._count(1, self._verified, path, done)

    def elsewhere(self, done: int) -> None:
        """Reports the bytes on disk while another fetch has its turn."""
        self._tell(Progress("downloading", done, self._total, waits=True))

    def _count(self, which: int, by_path: dict[str, int], path: str, done: int) -> None:
        with self._lock:
            self._sums[which] += done - by_path.get(path, 0)
            by_path[path] = done
            now = time.monotonic()
            last = self._sums[which] == self._total  # the end of a stage is always reported
            if now - self._last < INTERVAL and not last:
                return
            self._last = now
            downloaded, verified = self._sums
            if downloaded < self._total:
                self._tell(Progress("downloading", downloaded, self._total))
            else:
                self._tell(Progress("verifying", verified, self._total))
