"""The exceptions to an official SDK's tests on this server: excluded cases, and refused parameters.

Each entry has its reason, and test_official_suite.py fails when an entry is no longer needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Asked = Mapping[str, Any]  # a request's body, or its query


def always(asked: Asked) -> bool:
    """Applies an exception to every request that has its parameter."""
    return True


@dataclass(frozen=True)
class Refusal:
    """A parameter that is refused with 400: the suite's value cannot be honoured, or is invalid."""

    route: str  # method and path; ids are `{id}`
    param: str  # as the caller writes it, and as the error must name it
    reason: str
    instead: Any = None  # its replacement; None: none
    when: Callable[[Asked], bool] = always  # true: this request, which has the parameter, is refused


@dataclass(frozen=True)
class Need:
    """A parameter that the suite omits, and whose absence is refused with 400."""

    route: str
    param: str
    value: Any


@dataclass(frozen=True)
class Rules:
    """The tests of a suite that run here, and the answers that they must get."""

    files: tuple[str, ...]
    left_out: Mapping[tuple[str, str], str]  # (file, operation) -> reason; every case of the operation is excluded
    refused: tuple[Refusal, ...]
    needed: tuple[Need, ...] = ()
