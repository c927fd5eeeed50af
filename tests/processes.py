"""The state of other processes."""

from __future__ import annotations

import psutil


def has_ended(process: psutil.Process | int) -> bool:
    """Returns whether a process, or the one with this id, has ended; a zombie, which nobody reaped yet, has."""
    try:
        known = psutil.Process(process) if isinstance(process, int) else process
        return not known.is_running() or known.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it may end between the two questions
        return True
