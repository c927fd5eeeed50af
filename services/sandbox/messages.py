"""Messages that every confined process sends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ready:
    """First message: the process is ready for orders."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """First message of a process that cannot work here; `message` names the missing package."""

    message: str


@dataclass(frozen=True, slots=True)
class Begun:
    """The process received an order and is about to read it: if it dies from now on, the order is the cause."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to an order that cannot be carried out; `message` is for the caller."""

    message: str
    param: str = ""  # the request's parameter at fault; empty: not stated
