"""What one run of `allm serve` leaves on disk while it lives: sockets, rendered files, and a note of who runs where."""

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

from services.cli.problem import Problem

# With what comes after it, a socket's path stays below 107 bytes.
LONGEST_PARENT = 64
LOCK_NAME = "serve.lock"
NOTE_NAME = "run.json"


@dataclass(frozen=True, slots=True)
class RunNote:
    """`$ALLM_HOME/run.json`: how to reach a running stack. It is gone once the stack has stopped."""

    pid: int  # the supervisor
    base_url: str  # for OpenAI clients
    grpc: str  # `host:port` for gRPC clients
    metrics: dict[str, str]  # where each service tells its Prometheus metrics, by its name
    folder: str  # of sockets and rendered files
    children: dict[str, int]  # process ids by name
    ready: bool  # whether the models that the settings name are registered
    local: str = ""  # where this user's commands reach the gateway: a Unix socket where that port has TLS

    def write(self, home: Path) -> None:
        """Puts the note in place of an older one, whole."""
        partial = home / f"{NOTE_NAME}.partial"
        partial.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        partial.replace(home / NOTE_NAME)


@contextmanager
def run_folder(home: Path) -> Iterator[Path]:
    """A private folder for the time of a run, which is the only one with this `home`.

    It is not in the home because the path of a Unix socket may have 107 bytes at most, and homes can be deep.

    Raises:
        Problem: another `allm serve` runs with this home.
    """
    home.mkdir(parents=True, exist_ok=True)
    with (home / LOCK_NAME).open("a") as lock:  # the kernel lets go of it even if we are killed
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


def _remove_remains(home: Path) -> None:
    """Removes the folder of a run that was killed. The note is only believed about folders that we may have made."""
    try:
        folder = Path(json.loads((home / NOTE_NAME).read_text(encoding="utf-8"))["folder"])
        ours = folder.name.startswith("allm-") and folder.stat().st_uid == os.getuid()
    except (OSError, ValueError, LookupError, TypeError):
        return
    if ours and folder.parent == socket_parent():
        shutil.rmtree(folder, ignore_errors=True)


def socket_parent() -> Path:
    """Where folders with Unix sockets can be: their paths must be short."""
    usual = tempfile.gettempdir()
    return Path(usual if len(os.fsencode(usual)) <= LONGEST_PARENT else "/tmp")  # noqa: S108 - mkdtemp makes it private
