"""What every service and its workers say to each other, whatever the models do."""

from __future__ import annotations

from dataclasses import dataclass


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
