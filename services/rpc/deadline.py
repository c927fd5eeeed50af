"""The early end of a call: the caller's deadline, and cancellation.

The deadline is gRPC's own or that of the header `x-request-timeout`, whichever is sooner.

It applies to all work for the call, so it is stored in the call's context, where calls to a worker look it up. Work
that outlives the call, such as a response in the background, must clear it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from services.errors import InvalidRequest, Timeout

HEADER = "x-request-timeout"
SHOWN_CHARACTERS = 40  # of a wrong value


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment, and the error message when it passes."""

    at: float  # on the monotonic clock, which all processes of a machine share
    message: str

    @property
    def remaining(self) -> float:
        """The remaining seconds; negative when it has passed."""
        return self.at - time.monotonic()

    def error(self) -> Timeout:
        """Returns the error that ends the call."""
        return Timeout(self.message)


_CALLER: ContextVar[Deadline | None] = ContextVar("caller_deadline", default=None)


def caller_deadline() -> Deadline | None:
    """Returns the deadline of the current call, if it has one."""
    return _CALLER.get()


def keep_deadline(deadline: Deadline | None) -> None:
    """Sets the deadline of the current context; None: no deadline."""
    _CALLER.set(deadline)


def read_deadline(metadata: Mapping[str, str | bytes], remaining: float | None) -> Deadline | None:
    """Returns a call's deadline: the sooner of its metadata's and gRPC's, which is `remaining` seconds away.

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


def is_cancelled() -> bool:
    """Returns whether the running task itself was cancelled, not only something that it awaits.

    Raises RuntimeError without an event loop.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def ended(task: asyncio.Task[Any]) -> None:
    """Waits for a task to end, without cancelling it. If cancelled meanwhile, raises that after the task's end."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        raise cancelled
