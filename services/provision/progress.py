"""How far a fetch is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

INTERVAL = 0.2  # seconds between two reports


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes done of all that this stage has to do."""

    stage: Literal["downloading", "verifying"]
    done: int
    total: int
    waits: bool = False  # for another fetch, here or in another process


class Meter:
    """Sums up what the threads of one fetch have done, and tells it a few times a second."""

    def __init__(self, total: int, tell: Callable[[Progress], None]) -> None:
        self._total = total
        self._tell = tell
        self._downloaded: dict[str, int] = {}
        self._verified: dict[str, int] = {}
        self._sums = [0, 0]
        self._last = 0.0
        self._lock = threading.Lock()

    def downloaded(self, path: str, done: int) -> None:
        """So many bytes of a file are on disk."""
        self._count(0, self._downloaded, path, done)

    def verified(self, path: str, done: int) -> None:
        """So many bytes of a file have been verified."""
        self._count(1, self._verified, path, done)

    def elsewhere(self, done: int) -> None:
        """It is not this fetch's turn; so many bytes are there."""
        self._tell(Progress("downloading", done, self._total, waits=True))

    def _count(self, which: int, by_path: dict[str, int], path: str, done: int) -> None:
        with self._lock:
            self._sums[which] += done - by_path.get(path, 0)
            by_path[path] = done
            now = time.monotonic()
            last = self._sums[which] == self._total  # the end of a stage is always told
            if now - self._last < INTERVAL and not last:
                return
            self._last = now
            downloaded, verified = self._sums
            if downloaded < self._total:
                self._tell(Progress("downloading", downloaded, self._total))
            else:
                self._tell(Progress("verifying", verified, self._total))
