"""One check of a model, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from services.cli.verify.subject import Subject

Verdict = Literal["passed", "failed", "skipped"]


class Failed(Exception):
    """The model is not as it should be."""

    def __init__(self, seen: str, likely: str) -> None:
        super().__init__(seen)
        self.seen = seen  # what came instead
        self.likely = likely  # what is likely wrong, for the person who looks after the model


class Skipped(Exception):
    """The check says nothing about this model; its words say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that is looked at."""

    name: str
    compared: str  # what is held against what, thresholds included
    run: Callable[[Subject], str]  # what was seen; raises Failed, Skipped or Problem
    sense: bool = False  # whether it only means something where the weights do


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one check."""

    name: str
    verdict: Verdict
    compared: str
    seen: str
    likely: str = ""  # only of a failed one
    seconds: float = 0.0
