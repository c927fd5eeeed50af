"""Liveness of a process by a lock file. Unlike a process id it works across containers, and the kernel releases the
lock however the process ends. A stopped process (SIGSTOP) counts as alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class OwnerFile:
    """This process's lock file. Its name is unique and never used again after the release."""

    def __init__(self, path: Path) -> None:
        """Creates and locks the file. Raises OSError."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Removes and unlocks the file."""
        remove(self._path)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def lives(path: Path) -> bool:
    """Returns whether the file's process lives; True if unknown, so that memory is not given away twice."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two concurrent checks do not block each other
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove(path: Path) -> None:
    """Removes a dead process's file, if possible."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
