"""Files and folders that only their owner may use; those of older releases, which others could read, are mended.

Only this user's own are changed: a volume that root owns keeps its mode. Model files are not touched: other users may
share them.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

OTHERS = 0o077  # permissions of the group and of everybody else


def private_folder(path: Path) -> None:
    """Creates a folder that only its owner may enter, or mends an existing one. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    wider = (Path("/"), Path(os.path.expanduser("~")))  # noqa: PTH111 (Path.home fails for a user without a home)
    # A folder with other purposes keeps its mode: these, and sticky ones such as /tmp.
    if path.resolve() not in wider and not path.stat().st_mode & stat.S_ISVTX:
        make_private(path)


def make_private(path: Path) -> None:
    """Takes the permissions of all others from a file or folder, if it exists and is this user's own."""
    with contextlib.suppress(OSError):  # gone, or on a read-only disk
        found = path.stat()
        if found.st_uid == os.geteuid() and found.st_mode & OTHERS:
            path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS)
