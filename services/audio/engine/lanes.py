"""Where steps are computed: one after the other in the batch loop's own thread, or several at once beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from services.audio.engine.row import Row

# Steps that may begin and end while one is under way. Whoever watches the worker sees steps end: if one of them hangs,
# the others must not hide it for long.
OVERTAKING = 64


@dataclass(slots=True, eq=False)
class Work:
    """A step of the batch loop."""

    compute: Callable[[], Any]  # in a lane: calls the runtime, and leaves the loop alone
    settle: Callable[[Any], None]  # in the loop's thread, with what was computed
    windows: int
    encoding: Sequence[Row] = ()  # that are encoded
    result: Any = None
    fault: BaseException | None = None  # of `compute`: a defect, not what a runtime says of a batch
    overtaken: int = 0  # steps that began later and have ended

    def run(self) -> None:
        """Computes; keeps what came of it for the loop."""
        try:
            self.result = self.compute()
        except BaseException as fault:  # raised in the loop's thread, as if it had computed by itself
            self.fault = fault


class Lanes:
    """Computes up to `count` steps at the same time, each in a thread; a single one in the thread that starts it."""

    def __init__(self, count: int, ended: Callable[[Work], None]) -> None:
        """`ended` is told of each step that was computed, in the thread that computed it."""
        self.count = count
        self._ended = ended
        self._pool = ThreadPoolExecutor(count, "lane") if count > 1 else None
        self.under_way: list[Work] = []  # the oldest first

    @property
    def free(self) -> bool:
        """Whether another step may begin now."""
        if not self.under_way:
            return True
        return len(self.under_way) < self.count and self.under_way[0].overtaken < OVERTAKING

    def start(self, work: Work) -> None:
        """Begins a step; `take` must follow once it has ended."""
        self.under_way.append(work)
        if self._pool:
            self._pool.submit(self._run, work)
        else:
            self._run(work)

    def take(self, work: Work) -> Any:
        """The result of a step that has ended. Raises what its computing raised."""
        place = self.under_way.index(work)
        del self.under_way[place]
        for older in self.under_way[:place]:
            older.overtaken += 1
        if work.fault:
            raise work.fault
        return work.result

    def close(self) -> None:
        """Begins nothing more; what is under way ends by itself."""
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: Work) -> None:
        work.run()
        self._ended(work)
