"""A child's log file: append-only, bounded in size, with its last lines in memory."""

from __future__ import annotations

import contextlib
from collections import deque
from pathlib import Path

MAX_BYTES = 16 * 1024 * 1024
TAIL_LINES = 20


class LogFile:
    """Appends lines to a file. A full file is kept once as `NAME.1`, so a log takes 32 MiB at most."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._size = path.stat().st_size

    def write(self, lines: list[bytes]) -> None:
        """Appends whole lines, given without line ends.

        Lines that a full or broken disk rejects are lost: a child whose output is not read would block.
        """
        self._tail.extend(line.decode("utf-8", "replace") for line in lines)
        data = b"".join(line + b"\n" for line in lines)
        with contextlib.suppress(OSError):
            if self._size and self._size + len(data) > self._max_bytes:
                self._rotate()
            self._size += self._file.write(data) or 0

    def tail(self) -> list[str]:
        """Returns the last lines written."""
        return list(self._tail)

    def close(self) -> None:
        """Closes the file; later lines are lost."""
        self._file.close()

    def _rotate(self) -> None:
        self.path.replace(self.path.with_name(self.path.name + ".1"))
        fresh = self.path.open("ab", buffering=0)
        self._file.close()
        self._file, self._size = fresh, 0
