"""How much a step of a worker takes on, so that it takes a bounded time on any machine.

A step is what cancelled requests, deadlines and the watchdog wait for: on a slow processor a prompt that a GPU computes
at once would keep them waiting for minutes.
"""

from __future__ import annotations

STEP_SECONDS = 5.0  # that a step should take at the most


class Pace:
    """A limit that follows what steps have taken. It is a power of two of `least`, so that it changes rarely."""

    def __init__(self, least: int, most: int, start: int | None = None, seconds: float = STEP_SECONDS) -> None:
        """`least` and `most`: bounds of the limit; `start`: the first one, None: `least`; `seconds`: what a step should
        take."""
        self._least = min(least, most)
        self._most = most
        self._seconds = seconds
        self.limit = self._least if start is None else min(start, most)

    def took(self, amount: int, seconds: float) -> None:
        """A step of so much took so long. One that is too long shrinks the limit at once, a short and full one grows
        it."""
        if 2 * amount < self._least:
            return  # what it takes says little of more; a full step of unequal parts may be half empty
        fitting = amount * self._seconds / max(seconds, 1e-6)
        if seconds > 2 * self._seconds or (fitting > 2 * self.limit and 2 * amount >= self.limit):
            self.limit = self._fit(fitting)

    def _fit(self, amount: float) -> int:
        limit = self._least
        while 2 * limit <= min(amount, self._most):
            limit *= 2
        return self._most if amount >= self._most else limit
