"""Messages that all services and their workers share, for every modality."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # channels need msgspec, engines must run without it
    from services.worker.channel import BlockingChannel


@dataclass(frozen=True, slots=True)
class Cancel:
    """The request's caller is gone; the worker frees the request before the next step."""

    request: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the worker immediately."""


@dataclass(frozen=True, slots=True)
class Loading:
    """Progress of loading, 0 to 1."""

    fraction: float


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The model could not be loaded; `code` is one of the ten error codes."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused:
    """The request cannot run; the worker has forgotten it."""

    request: int
    code: str
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    """A request has entered a phase. The phase lasts until the next one begins or the request ends. Every request
    starts in `queue` and may return to it.
    """

    request: int
    name: str
    at: float  # time on the monotonic clock, which all processes of a machine share


MESSAGE_CHARACTERS = 300  # of a library's error text


def error_line(error: BaseException) -> str:
    """Returns a library's error text on one line, cut to MESSAGE_CHARACTERS."""
    return " ".join(str(error).split())[:MESSAGE_CHARACTERS]


class EngineError(Exception):
    """An error that ends requests or loading; `code` is one of the error codes."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param  # the request's wrong parameter

    def refusal(self, request: int) -> RequestRefused:
        """Returns the message that ends a request with this error."""
        return RequestRefused(request=request, code=self.code, message=self.message, param=self.param)


_NO_MEMORY = (
    "out of memory",
    "not enough memory",
    "allocate memory",
    "failed to allocate",
    "unable to allocate",
    "bad_alloc",
)


def is_out_of_memory(error: BaseException) -> bool:
    """True if a library ran out of memory, judged by the error's type or, because most raise others, by its text."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY)


class LoadingProgress:
    """Reports loading progress to the service, at most ten times a second."""

    def __init__(self, channel: BlockingChannel[Any]) -> None:
        self._channel = channel
        self._sent = 0.0

    def __call__(self, fraction: float) -> None:
        """Reports that `fraction` of the model is loaded, 0 to 1."""
        now = time.monotonic()
        if now - self._sent >= 0.1:
            self._sent = now
            self._channel.send(Loading(fraction))
