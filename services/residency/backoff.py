"""Models that fail again and again are left alone for a while: 1, 2, 4 ... 60 seconds.

The first two failures cost nothing: the next request tries anew. A load that fails counts until one succeeds; a worker
that dies counts until a request ends well, because a model may load every time and die of the first thing it computes.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from services.errors import AllmError, ModelNotReady
from services.residency.resident import ResidentKey

FREE = 2  # failures in a row after which the next request still tries anew
FIRST_PAUSE = 1.0  # seconds
LONGEST_PAUSE = 60.0


@dataclass(slots=True)
class _Trouble:
    """What went wrong with one model, and for how long it is left alone."""

    loads: int = 0  # failed in a row
    deaths: int = 0  # of workers, without a request that ended well in between
    until: float = 0.0  # by the clock
    problem: AllmError | None = None  # shown as the model's state until it is loaded


class Backoff:
    """What went wrong lately, by model. `clock`: seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._troubles: dict[ResidentKey, _Trouble] = {}

    def load_failed(self, key: ResidentKey, problem: AllmError) -> None:
        """A load ended with `problem`."""
        trouble = self._troubles.setdefault(key, _Trouble())
        trouble.loads += 1
        trouble.problem = problem
        trouble.until = self._clock() + _pause(trouble.loads)

    def died(self, key: ResidentKey, how: str) -> None:
        """A worker that had loaded the model ended by itself, or was ended by the watchdog."""
        trouble = self._troubles.setdefault(key, _Trouble())
        trouble.deaths += 1
        if pause := _pause(trouble.deaths):
            trouble.until = self._clock() + pause
            trouble.problem = ModelNotReady(
                f"{key.model_id} failed {trouble.deaths} times in a row: {how}", retry_after=pause
            )

    def loaded(self, key: ResidentKey) -> None:
        """A load succeeded."""
        if trouble := self._troubles.get(key):
            trouble.loads, trouble.problem = 0, None
            if not trouble.deaths:
                del self._troubles[key]

    def served(self, key: ResidentKey) -> None:
        """A request ended well."""
        if self._troubles:
            self._troubles.pop(key, None)

    def forget(self, key: ResidentKey) -> None:
        """The model is given up."""
        self._troubles.pop(key, None)

    def __iter__(self) -> Iterator[ResidentKey]:
        """Everything that is in trouble."""
        return iter(self._troubles)

    def problem(self, key: ResidentKey) -> AllmError | None:
        """Why it is not loaded; None after a load that succeeded, and before the first that failed."""
        trouble = self._troubles.get(key)
        return trouble.problem if trouble else None

    def check(self, key: ResidentKey) -> None:
        """Raises the problem of a model that is left alone now."""
        trouble = self._troubles.get(key)
        if trouble is None or trouble.problem is None:
            return
        if (left := trouble.until - self._clock()) > 0:
            # A copy: an error that is raised again and again would keep what was on the stack each time.
            problem = copy.copy(trouble.problem)
            if isinstance(problem, ModelNotReady):
                problem.retry_after = left
            raise problem


def _pause(failures: int) -> float:
    """Seconds until the next attempt after so many failures in a row."""
    if failures <= FREE:
        return 0.0
    return float(min(FIRST_PAUSE * 2 ** min(failures - FREE - 1, 10), LONGEST_PAUSE))
