"""The files of one run of `allm serve`: sockets, rendered files, and a note with its addresses and processes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from services.cli.problem import Problem
from services.storage import make_private, private_folder

# With its suffix, a socket's path stays below 107 bytes.
LONGEST_PARENT = 64
LOCK_NAME = "serve.lock"
NOTE_NAME = "run.json"


@dataclass(frozen=True, slots=True)
class RunNote:
    """`$ALLM_HOME/run.json`: the addresses of a running stack. It is removed when the stack stops."""

    pid: int  # the supervisor
    base_url: str  # for OpenAI clients
    grpc: str  # `host:port` for gRPC clients
    metrics: dict[str, str]  # URL of each service's Prometheus metrics, by name
    folder: str  # folder of sockets and rendered files
    children: dict[str, int]  # process ids by name
    ready: bool  # whether the models of the settings are registered
    local: str = ""  # address of the gateway for this user's commands: a Unix socket if the port has TLS

    def write(self, home: Path) -> None:
        """Replaces the note atomically."""
        partial = home / f"{NOTE_NAME}.partial"
        partial.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        partial.replace(home / NOTE_NAME)


@contextmanager
def run_folder(home: Path) -> Iterator[Path]:
    """Creates a private folder for a run, and locks `home` for it.

    It is not in the home because the path of a Unix socket may have 107 bytes at most, and homes can be deep.

    Raises:
        Problem: another `allm serve` runs with this home, or it cannot be written.
    """
    with _lock_file(home) as lock:  # the kernel releases the lock even if we are killed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Problem(
                f"allm already serves with {home}: stop it, or choose another folder with ALLM_HOME"
            ) from None
        _remove_remains(home)
        (home / NOTE_NAME).unlink(missing_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="allm-", dir=socket_parent()))  # readable for this user only
        try:
            yield folder
        finally:
            (home / NOTE_NAME).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)


def _lock_file(home: Path) -> TextIO:
    try:
        private_folder(home)
        lock = (home / LOCK_NAME).open("a")
    except OSError as error:
        why = f"{home} cannot be written ({error.strerror}): choose another folder with ALLM_HOME"
        raise Problem(why) from error
    make_private(home / LOCK_NAME)
    return lock


def _remove_remains(home: Path) -> None:
    """Removes the folder of a killed run. The note is trusted only for folders that may be ours."""
    try:
        folder = Path(json.loads((home / NOTE_NAME).read_text(encoding="utf-8"))["folder"])
        ours = folder.name.startswith("allm-") and folder.stat().st_uid == os.getuid()
    except (OSError, ValueError, LookupError, TypeError):
        return
    if ours and folder.parent == socket_parent():
        shutil.rmtree(folder, ignore_errors=True)


def socket_parent() -> Path:
    """Returns the parent of folders with Unix sockets, whose paths must be short."""
    usual = tempfile.gettempdir()
    return Path(usual if len(os.fsencode(usual)) <= LONGEST_PARENT else "/tmp")  # noqa: S108 - mkdtemp makes it private
