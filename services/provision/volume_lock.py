"""A lock between processes that share a volume. The kernel lets go of it when its holder dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class VolumeLock:
    """An flock on a file of its own, which stays there: deleting it would let two processes lock different files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    @property
    def exists(self) -> bool:
        """Whether anybody ever took it."""
        return self._path.is_file()

    def take(self, *, shared: bool = False) -> bool:
        """Takes the lock unless somebody holds it in a way that excludes this; says whether it did.

        Raises:
            OSError: the file cannot be made or opened.
        """
        return self._take(fcntl.LOCK_NB | (fcntl.LOCK_SH if shared else fcntl.LOCK_EX))

    def wait_shared(self) -> None:
        """Takes the lock together with others; blocks while somebody holds it alone.

        Raises:
            OSError: the file cannot be made or opened.
        """
        self._take(fcntl.LOCK_SH)

    def release(self) -> None:
        """Lets go of it, if it is held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self, operation: int) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self.release()
        self._descriptor = descriptor
        return True
