"""The back-off for models that keep failing: pauses of 1, 2, 4 ... 60 seconds between attempts.

The first two failures cost nothing: the next request retries. Failed loads count until one succeeds. Worker deaths
count until a request succeeds, because a model may load every time and die on its first computation.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from services.errors import AllmError, ModelNotReady
from services.residency.memory.reservation import ResidentKey

FREE = 2  # failures in a row after which the next request still retries
FIRST_PAUSE = 1.0  # seconds
LONGEST_PAUSE = 60.0


@dataclass(slots=True)
class _Trouble:
    """The failures of one model, and the pause until it is retried."""

    loads: int = 0  # consecutive failed loads
    deaths: int = 0  # consecutive worker deaths without a successful request in between
    until: float = 0.0  # clock time at which the pause ends
    problem: AllmError | None = None  # shown as the model's state until it loads


class Backoff:
    """Recent failures per model. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._troubles: dict[ResidentKey, _Trouble] = {}

    def load_failed(self, key: ResidentKey, problem: AllmError) -> None:
        """Records a load that failed with `problem`."""
        trouble = self._troubles.setdefault(key, _Trouble())
        trouble.loads += 1
        trouble.problem = problem
        trouble.until = self._clock() + _pause(trouble.loads)

    def died(self, key: ResidentKey, how: str) -> None:
        """Records that a worker with the model loaded has exited or was killed by the watchdog."""
        trouble = self._troubles.setdefault(key, _Trouble())
        trouble.deaths += 1
        if pause := _pause(trouble.deaths):
            trouble.until = self._clock() + pause
            trouble.problem = ModelNotReady(
                f"{key.model_id} failed {trouble.deaths} times in a row: {how}", retry_after=pause
            )

    def loaded(self, key: ResidentKey) -> None:
        """Records a successful load."""
        if trouble := self._troubles.get(key):
            trouble.loads, trouble.problem = 0, None
            if not trouble.deaths:
                del self._troubles[key]

    def served(self, key: ResidentKey) -> None:
        """Records a successful request."""
        if self._troubles:
            self._troubles.pop(key, None)

    def forget(self, key: ResidentKey) -> None:
        """Drops the record of a removed model."""
        self._troubles.pop(key, None)

    def __iter__(self) -> Iterator[ResidentKey]:
        """Iterates over the models with failures."""
        return iter(self._troubles)

    def problem(self, key: ResidentKey) -> AllmError | None:
        """Returns why the model is not loaded; None before the first failure and after a successful load."""
        trouble = self._troubles.get(key)
        return trouble.problem if trouble else None

    def check(self, key: ResidentKey) -> None:
        """Raises the model's problem during its pause."""
        trouble = self._troubles.get(key)
        if trouble is None or trouble.problem is None:
            return
        if (left := trouble.until - self._clock()) > 0:
            # A copy: raising the same exception again and again would keep a traceback each time.
            problem = copy.copy(trouble.problem)
            if isinstance(problem, ModelNotReady):
                problem.retry_after = left
            raise problem


def _pause(failures: int) -> float:
    """Returns the pause in seconds after this many consecutive failures."""
    if failures <= FREE:
        return 0.0
    return float(min(FIRST_PAUSE * 2 ** min(failures - FREE - 1, 10), LONGEST_PAUSE))
