"""Whether a process lives, by a file that it holds locked: unlike a process id it holds across containers, and the
kernel lets go of it however the process ends. One that is stopped (SIGSTOP) lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class OwnerFile:
    """This process's own mark. Its name is nobody else's: it is never taken again after it was let go."""

    def __init__(self, path: Path) -> None:
        """Makes and locks it. Raises OSError where that cannot be done."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Lets go of it and takes it away."""
        remove(self._path)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def lives(path: Path) -> bool:
    """Whether the process that made this file lives; True where that cannot be told: memory is not given away twice."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that look do not see each other
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove(path: Path) -> None:
    """Takes the file of a dead process away, if it can be."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
