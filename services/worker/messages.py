"""What every service and its workers say to each other, whatever the models do."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # engines run without msgspec, which channels need
    from services.worker.channel import BlockingChannel


@dataclass(frozen=True, slots=True)
class Cancel:
    """The request's caller is gone; what it holds is given up before the next step."""

    request: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the worker at once."""


@dataclass(frozen=True, slots=True)
class Loading:
    """Progress of loading, 0 to 1."""

    fraction: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The model could not be loaded; `code` is one of the ten."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The request cannot run; the worker has forgotten it."""

    request: int
    code: str
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    """A request has entered a phase of its work. It is in it until it enters the next one, or ends. Before the first it
    is in `queue`, and it may come back there.
    """

    request: int
    name: str
    at: float  # when, on the monotonic clock, which all processes of a machine share


class EngineError(Exception):
    """A fault that ends requests or loading; `code` is one of the error codes."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param  # the request's parameter at fault


_NO_MEMORY = (
    "out of memory",
    "not enough memory",
    "allocate memory",
    "failed to allocate",
    "unable to allocate",
    "bad_alloc",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a library failed for want of memory: by its kind, or, as most of them raise it, by its words."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY)


class LoadingProgress:
    """Sends loading progress, at most ten times a second."""

    def __init__(self, channel: BlockingChannel[Any]) -> None:
        self._channel = channel
        self._sent = 0.0

    def __call__(self, fraction: float) -> None:
        """`fraction` of the model is loaded, 0 to 1."""
        now = time.monotonic()
        if now - self._sent >= 0.1:
            self._sent = now
            self._channel.send(Loading(fraction))
