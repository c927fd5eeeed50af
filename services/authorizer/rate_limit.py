"""The state of a key's rate of requests, which an admitted request reports."""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.auth.token_rates import SLACK


@dataclass(frozen=True, slots=True)
class RateState:
    """The state of a rate limit at one moment, in OpenAI's terms."""

    limit: int  # requests per minute
    remaining: int  # requests that may come immediately
    reset_seconds: int  # until the bucket is full again, rounded up

    @classmethod
    def of(cls, per_minute: int, used: float) -> RateState:
        """Returns the state of a key that has used so many requests, which drain evenly."""
        missing = used - SLACK
        return cls(per_minute, int(per_minute - missing), max(0, math.ceil(missing * 60 / per_minute)))

    def headers(self) -> dict[str, str]:
        """Returns the state as HTTP headers."""
        return {
            "x-ratelimit-limit-requests": str(self.limit),
            "x-ratelimit-remaining-requests": str(self.remaining),
            "x-ratelimit-reset-requests": f"{self.reset_seconds}s",
        }
