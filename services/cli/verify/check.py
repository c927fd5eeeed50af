"""A check of a model, and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from services.cli.verify.subject import Subject

Verdict = Literal["passed", "failed", "skipped"]


class Failed(Exception):
    """The model failed the check."""

    def __init__(self, seen: str, likely: str) -> None:
        super().__init__(seen)
        self.seen = seen  # the unexpected result
        self.likely = likely  # the likely cause, for the model's maintainer


class Skipped(Exception):
    """The check does not apply to this model; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One property of a model to check."""

    name: str
    compared: str  # the comparison that is made, with its thresholds
    run: Callable[[Subject], str]  # returns the observation; raises Failed, Skipped or Problem
    sense: bool = False  # whether it is meaningful only for trained weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one check."""

    name: str
    verdict: Verdict
    compared: str
    seen: str
    likely: str = ""  # only if it failed
    seconds: float = 0.0
