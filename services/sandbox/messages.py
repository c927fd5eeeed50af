"""What every confined process says, whatever it reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ready:
    """First message: it can take an order."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """First message of one that cannot work here; the message says what is missing."""

    message: str


@dataclass(frozen=True, slots=True)
class Begun:
    """It took the order and has not looked at it yet: if it dies from now on, it is the doing of what it reads."""
