"""How many requests of a key are let through: a bucket that fills up evenly, and holds a minute's worth."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RateState:
    """A rate at one moment, in OpenAI's words."""

    limit: int  # requests in a minute
    remaining: int  # that may come at once
    reset_seconds: int  # until the bucket is full again, rounded up

    def headers(self) -> dict[str, str]:
        """As HTTP headers."""
        return {
            "x-ratelimit-limit-requests": str(self.limit),
            "x-ratelimit-remaining-requests": str(self.remaining),
            "x-ratelimit-reset-requests": f"{self.reset_seconds}s",
        }


class Bucket:
    """Of one key. Whoever was silent for a minute may come `per_minute` times at once, and at that rate from then on.

    `now`: seconds of a clock that only grows.
    """

    def __init__(self, per_minute: int, now: float) -> None:
        self._per_minute = per_minute
        self._content = float(per_minute)
        self._at = now

    def take(self, now: float) -> int:
        """Takes one request out. Gives 0, or, where there is none, the whole seconds until there will be one."""
        self._fill(now)
        if self._content >= 1:
            self._content -= 1
            return 0
        return max(1, math.ceil((1 - self._content) * 60 / self._per_minute))

    def state(self, now: float) -> RateState:
        """How full it is."""
        self._fill(now)
        missing = self._per_minute - self._content
        return RateState(self._per_minute, int(self._content), math.ceil(missing * 60 / self._per_minute))

    def _fill(self, now: float) -> None:
        self._content = min(float(self._per_minute), self._content + (now - self._at) * self._per_minute / 60)
        self._at = now
