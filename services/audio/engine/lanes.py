"""Lanes that compute steps: one at a time in the batch loop's thread, or several in parallel threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from services.audio.engine.row import Row

# Steps that may begin and end while one is running. The watchdog sees steps end: if one of them hangs, the others must
# not hide it for long.
OVERTAKING = 64


@dataclass(slots=True, eq=False)
class Work:
    """A step of the batch loop."""

    compute: Callable[[], Any]  # in a lane: calls the runtime, does not touch the loop
    settle: Callable[[Any], None]  # in the loop's thread, with the result
    windows: int
    encoding: Sequence[Row] = ()  # that the step encodes
    result: Any = None
    fault: BaseException | None = None  # of `compute`: a defect, not a runtime's error for a batch
    overtaken: int = 0  # steps that began later and ended earlier

    def run(self) -> None:
        """Computes the step and keeps its result or fault for the loop."""
        try:
            self.result = self.compute()
        except BaseException as fault:  # raised again by `Lanes.take`, in the loop's thread
            self.fault = fault


class Lanes:
    """Up to `count` parallel lanes, each a thread; a single lane uses the calling thread."""

    def __init__(self, count: int, ended: Callable[[Work], None]) -> None:
        """`ended` is called with each computed step, in the thread that computed it."""
        self.count = count
        self._ended = ended
        self._pool = ThreadPoolExecutor(count, "lane") if count > 1 else None
        self.under_way: list[Work] = []  # oldest first

    @property
    def free(self) -> bool:
        """True if another step may start now."""
        if not self.under_way:
            return True
        return len(self.under_way) < self.count and self.under_way[0].overtaken < OVERTAKING

    def start(self, work: Work) -> None:
        """Starts a step; `take` must follow once it has ended."""
        self.under_way.append(work)
        if self._pool:
            self._pool.submit(self._run, work)
        else:
            self._run(work)

    def take(self, work: Work) -> Any:
        """Removes a step that has ended and returns its result. Raises the fault of its computation."""
        place = self.under_way.index(work)
        del self.under_way[place]
        for older in self.under_way[:place]:
            older.overtaken += 1
        if work.fault:
            raise work.fault
        return work.result

    def close(self) -> None:
        """Starts no more steps; running ones end by themselves."""
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: Work) -> None:
        work.run()
        self._ended(work)
