"""The events of a parsed answer. Their texts are never empty."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the model's reasoning before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of the model's text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The model calls one of the tools; its arguments follow."""

    index: int  # among the answer's calls, from 0
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text for the caller."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The end of a call. Truncated arguments are not complete JSON."""

    index: int


Event = Reasoning | Content | CallStarted | CallArguments | CallEnded
