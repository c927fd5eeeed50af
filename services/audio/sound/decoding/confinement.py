"""The resource limits of a decoder process, so that a hostile file can do no more than end it."""

from __future__ import annotations

from services.sandbox import limits as confinement
from services.sandbox.limits import end_with, may_open

__all__ = ["CPU_SECONDS", "MEMORY_BYTES", "SOUND_PER_CPU_SECOND", "allow_cpu", "confine", "end_with", "may_open"]

MEMORY_BYTES = 512 * 1024 * 1024  # in addition to the libraries; tables of a day-long m4a need under a tenth
CPU_SECONDS = 30.0  # for any file
SOUND_PER_CPU_SECOND = 40.0  # and one second more for this much sound; slow machines decode several times faster


def confine() -> None:
    """Removes every right that decoding does not need. Nothing can be imported or started afterwards."""
    confinement.confine(MEMORY_BYTES)


def allow_cpu(max_seconds: float) -> None:
    """Allows CPU time for one more file of at most `max_seconds` of sound; the kernel ends the process after that."""
    confinement.allow_cpu(CPU_SECONDS + max_seconds / SOUND_PER_CPU_SECOND)
