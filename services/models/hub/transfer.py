"""Downloads one file from the hub to disk, resuming where an earlier attempt ended.

The file grows in place: its size is the number of bytes received. The library's own download deletes its partial file
at every failure, so a connection lost near the end of 40 GB would cost 40 GB.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from services.errors import Cancelled, ModelNotReady, Overloaded
from services.models.hub.repository import Damaged, Remote, answer_of, starts_at
from services.models.manifest import Manifest, ManifestFile

ATTEMPTS = 5  # consecutive attempts without new bytes
BACKOFF_SECONDS = 0.5  # before the second attempt; doubles with each
SLOW_SECONDS = 30.0  # a connection with less than SLOW_BYTES in this time is dropped; the next one may be faster
SLOW_BYTES = 64 * 1024
LONGEST_WAIT = 60.0  # longest wait in seconds that a hub may ask for; for more the error is raised to the caller


def download(
    repository: str,
    revision: str,
    file: ManifestFile,
    folder: Path,
    progress: Callable[[int], None],
    stop: threading.Event,
) -> None:
    """Fetches the missing bytes of `folder / file.path`. Blocks. Verifies the size, not the content.

    `progress` is called with the file's bytes on disk, which may decrease when the download starts over.

    Raises:
        Cancelled: `stop` was set; detected within the read timeout of `services.models.hub.repository`.
        Damaged: the hub's file has another size.
        ModelInvalid: the hub does not have the file, or HF_TOKEN may not read it.
        ModelNotReady, Overloaded: the hub cannot be reached, fails or is busy, for several attempts.
        OSError: the file cannot be written.
    """
    remote = Remote(repository, revision, file.path)
    with _opened(folder, file) as out:
        failures = 0
        while (done := _restart_if_too_long(out, file.size)) < file.size:
            progress(done)
            try:
                _receive(remote, file.size, out, done, progress, stop)
            except (ModelNotReady, Overloaded) as error:
                failures = 1 if os.fstat(out.fileno()).st_size > done else failures + 1
                wait = BACKOFF_SECONDS * 2 ** (failures - 1)
                if isinstance(error, Overloaded):
                    wait = error.retry_after or wait
                if failures >= ATTEMPTS or wait > LONGEST_WAIT:
                    raise
                if stop.wait(wait):
                    raise _given_up(remote) from None
        progress(file.size)


def _receive(
    remote: Remote, size: int, out: io.FileIO, done: int, progress: Callable[[int], None], stop: threading.Event
) -> None:
    """Requests everything from `done` on; keeps the received bytes even if it fails."""
    if stop.is_set():
        raise _given_up(remote)
    with answer_of(remote, done) as response:
        position = starts_at(remote, response, done, size)
        out.truncate(position)
        out.seek(position)
        window, mark = time.monotonic(), position
        for chunk in response.iter_bytes():
            if position + len(chunk) > size:
                out.truncate(0)
                raise Damaged(f"{remote}: the hub sends more than the expected {size} bytes")
            _write(out, chunk)
            position += len(chunk)
            progress(position)
            if stop.is_set():
                raise _given_up(remote)
            if time.monotonic() - window > SLOW_SECONDS:
                if position - mark < SLOW_BYTES and position < size:
                    raise ModelNotReady(f"{remote}: {position - mark} bytes in {SLOW_SECONDS:.0f} s is too slow")
                window, mark = time.monotonic(), position
    if position < size:
        raise ModelNotReady(f"{remote}: the hub's answer ended at byte {position} of {size}")


def _given_up(remote: Remote) -> Cancelled:
    return Cancelled(f"{remote}: the download was stopped")


def _restart_if_too_long(out: io.FileIO, size: int) -> int:
    done = os.fstat(out.fileno()).st_size
    if done <= size:
        return done
    out.truncate(0)
    return 0


def _write(out: io.FileIO, chunk: bytes) -> None:
    """Writes unbuffered, so that a killed process leaves the bytes it received."""
    view = memoryview(chunk)
    while view:
        view = view[out.write(view) or 0 :]


@contextlib.contextmanager
def _opened(folder: Path, file: ManifestFile) -> Iterator[io.FileIO]:
    """Opens the file below `folder`, creating it and its parents. Follows no links, so no path leaves the folder."""
    Manifest(files=(file,)).check()
    *parents, name = file.path.split("/")
    with contextlib.ExitStack() as stack:
        at = _descriptor(stack, folder, os.O_RDONLY | os.O_DIRECTORY)
        for parent in parents:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parent, dir_fd=at)
            at = _descriptor(stack, parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, at)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        yield stack.enter_context(io.FileIO(os.open(name, flags, 0o666, dir_fd=at), "r+"))


def _descriptor(stack: contextlib.ExitStack, path: Path | str, flags: int, at: int | None = None) -> int:
    descriptor = os.open(path, flags | os.O_CLOEXEC, dir_fd=at)
    stack.callback(os.close, descriptor)
    return descriptor
