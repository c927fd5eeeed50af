"""A lock between processes that share a volume. The kernel releases it when its holder dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class VolumeLock:
    """An flock on a lock file that is never deleted: otherwise two processes could lock different files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    @property
    def exists(self) -> bool:
        """True if the lock was ever taken."""
        return self._path.is_file()

    def take(self, *, shared: bool = False) -> bool:
        """Takes the lock unless another holder excludes this; returns whether it did.

        Raises:
            OSError: the file cannot be created or opened.
        """
        return self._take(fcntl.LOCK_NB | (fcntl.LOCK_SH if shared else fcntl.LOCK_EX))

    def wait_shared(self) -> None:
        """Takes a shared lock; blocks while another process holds it exclusively.

        Raises:
            OSError: the file cannot be created or opened.
        """
        self._take(fcntl.LOCK_SH)

    def release(self) -> None:
        """Releases the lock, if it is held."""
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
