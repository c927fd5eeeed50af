"""The work limit of a worker's step, adapted so that a step takes a bounded time on any machine.

Cancelled requests, deadlines and the watchdog wait for the current step: on a slow processor a prompt that a GPU
computes in one step would block them for minutes.
"""

from __future__ import annotations

STEP_SECONDS = 5.0  # target maximum of a step


class Pace:
    """A limit that adapts to measured steps. It is `least` times a power of two, or `most`, so it changes rarely."""

    def __init__(self, least: int, most: int, start: int | None = None, seconds: float = STEP_SECONDS) -> None:
        """`least` and `most`: bounds of the limit; `start`: the first limit, None: `least`; `seconds`: the target time
        of a step."""
        self._least = min(least, most)
        self._most = most
        self._seconds = seconds
        self.limit = self._least if start is None else min(start, most)

    def took(self, amount: int, seconds: float) -> None:
        """Records a step. A step that took too long shrinks the limit immediately; a short one near the limit raises
        it."""
        if 2 * amount < self._least:
            return  # too small to extrapolate from; a full step of unequal parts may be half empty
        fitting = amount * self._seconds / max(seconds, 1e-6)
        if seconds > 2 * self._seconds or (fitting > 2 * self.limit and 2 * amount >= self.limit):
            self.limit = self._fit(fitting)

    def _fit(self, amount: float) -> int:
        limit = self._least
        while 2 * limit <= min(amount, self._most):
            limit *= 2
        return self._most if amount >= self._most else limit
