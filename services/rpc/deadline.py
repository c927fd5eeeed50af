"""Until when a caller wants its answer: gRPC's own deadline, or the header `x-request-timeout`, whichever is sooner.

A deadline holds for everything that is done for the call, so it is kept in the call's context: whoever asks a worker on
its behalf looks it up. What goes on without the call, such as a response in the background, has to forget it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass

from services.errors import InvalidRequest, Timeout

HEADER = "x-request-timeout"
SHOWN_CHARACTERS = 40  # of a wrong value


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment, and what is said when it passes."""

    at: float  # on the monotonic clock, which all processes of a machine share
    message: str

    @property
    def remaining(self) -> float:
        """Seconds that are left; negative when it has passed."""
        return self.at - time.monotonic()

    def error(self) -> Timeout:
        """What the call ends with."""
        return Timeout(self.message)


_CALLER: ContextVar[Deadline | None] = ContextVar("caller_deadline", default=None)


def caller_deadline() -> Deadline | None:
    """The deadline of the call that this is done for, if it has one."""
    return _CALLER.get()


def keep_deadline(deadline: Deadline | None) -> None:
    """From here on things are done for a call with this deadline, or for none."""
    _CALLER.set(deadline)


def read_deadline(metadata: Mapping[str, str | bytes], remaining: float | None) -> Deadline | None:
    """A call's deadline by its metadata, and by what gRPC says is `remaining`, in seconds.

    Raises:
        InvalidRequest: the header is no positive number.
    """
    now = time.monotonic()
    found = []
    if remaining is not None:
        found.append(Deadline(now + remaining, "the call's deadline has passed"))
    if (value := metadata.get(HEADER)) is not None:
        seconds = _seconds(str(value))
        found.append(Deadline(now + seconds, f"the request took longer than the {seconds:g} seconds of {HEADER}"))
    return min(found, key=lambda deadline: deadline.at, default=None)


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds) and seconds > 0:
        return seconds
    shown = value[:SHOWN_CHARACTERS]
    raise InvalidRequest(f"'{HEADER}' must be a number of seconds above 0, not {shown!r}.", param=HEADER)
