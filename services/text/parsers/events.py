"""What an answer's text means, piece by piece. Texts are never empty."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of what the model says to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The model calls one of the tools; its arguments follow."""

    index: int  # among the answer's calls, from 0
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments: JSON text as the caller should get it."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """Nothing more comes of this call. Arguments that broke off are no complete JSON."""

    index: int


Event = Reasoning | Content | CallStarted | CallArguments | CallEnded
