"""Rate limit of a key's requests: a token bucket that refills evenly and holds one minute's worth."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RateState:
    """The state of a rate limit at one moment, in OpenAI's terms."""

    limit: int  # requests per minute
    remaining: int  # requests that may come immediately
    reset_seconds: int  # until the bucket is full again, rounded up

    def headers(self) -> dict[str, str]:
        """Returns the state as HTTP headers."""
        return {
            "x-ratelimit-limit-requests": str(self.limit),
            "x-ratelimit-remaining-requests": str(self.remaining),
            "x-ratelimit-reset-requests": f"{self.reset_seconds}s",
        }


class Bucket:
    """The token bucket of one key: after an idle minute it allows a burst of `per_minute` requests, then that rate.

    `now`: seconds of a monotonic clock.
    """

    def __init__(self, per_minute: int, now: float) -> None:
        self._per_minute = per_minute
        self._content = float(per_minute)
        self._at = now

    def take(self, now: float) -> int:
        """Takes one request. Returns 0 if it is allowed, or the whole seconds until the next one will be."""
        self._fill(now)
        if self._content >= 1:
            self._content -= 1
            return 0
        return max(1, math.ceil((1 - self._content) * 60 / self._per_minute))

    def state(self, now: float) -> RateState:
        """Returns how full the bucket is."""
        self._fill(now)
        missing = self._per_minute - self._content
        return RateState(self._per_minute, int(self._content), math.ceil(missing * 60 / self._per_minute))

    def _fill(self, now: float) -> None:
        self._content = min(float(self._per_minute), self._content + (now - self._at) * self._per_minute / 60)
        self._at = now
