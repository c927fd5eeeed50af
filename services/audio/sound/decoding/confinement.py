"""How much a decoder process may use: little, so that a hostile file can do no more than end it."""

from __future__ import annotations

from services.sandbox import limits as confinement
from services.sandbox.limits import end_with, may_open

__all__ = ["CPU_SECONDS", "MEMORY_BYTES", "SOUND_PER_CPU_SECOND", "allow_cpu", "confine", "end_with", "may_open"]

MEMORY_BYTES = 512 * 1024 * 1024  # on top of what the libraries take; tables of a day-long m4a need under a tenth
CPU_SECONDS = 30.0  # for any file
SOUND_PER_CPU_SECOND = 40.0  # and one second more for so much sound; slow machines decode several times faster


def confine() -> None:
    """Takes away what decoding does not need. Nothing can be imported or started afterwards."""
    confinement.confine(MEMORY_BYTES)


def allow_cpu(max_seconds: float) -> None:
    """Gives the process CPU time for one more file of at most so much sound; the kernel ends it when that is spent."""
    confinement.allow_cpu(CPU_SECONDS + max_seconds / SOUND_PER_CPU_SECOND)
