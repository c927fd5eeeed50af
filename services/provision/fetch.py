"""The fetch of a manifest's files to this machine: verified, and published all together or not at all.

Until their publication the files are in a staging folder, which the next attempt resumes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.byte_count import bytes_word
from services.errors import AllmError, Cancelled, ModelNotReady, Overloaded
from services.models.hub.repository import Damaged
from services.models.hub.transfer import download
from services.models.manifest import Manifest, ManifestFile
from services.provision.model_cache import ModelCache, problem
from services.storage import sync

log = logging.getLogger(__name__)

INTERVAL = 0.2  # seconds between two reports
FILES_AT_ONCE = 4
MODELS_AT_ONCE = 8  # in this process; others wait
MARGIN = 256 * 1024 * 1024  # bytes that a fetch leaves free
LOCK_SECONDS = 0.5  # between two checks whether another process has finished
DISK_SECONDS = 60.0  # until the next check for free disk space
WAIT_SECONDS = 10.0  # until the next attempt after a failure of the hub or the disk
_fetching = threading.BoundedSemaphore(MODELS_AT_ONCE)


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """Bytes done in a stage, of the total."""

    stage: Literal["downloading", "verifying"]
    done: int
    total: int
    waits: bool = False  # for another fetch, in this or another process


class Meter:
    """The progress meter of a fetch: sums its threads' work, and reports it a few times a second."""

    def __init__(self, total: int, report: Callable[[FetchProgress], None]) -> None:
        self._total = total
        self._report = report
        self._downloaded: dict[str, int] = {}
        self._verified: dict[str, int] = {}
        self._sums = [0, 0]
        self._last = 0.0
        self._lock = threading.Lock()

    def downloaded(self, path: str, done: int) -> None:
        """Reports the bytes of a file that are on disk."""
        self._count(0, self._downloaded, path, done)

    def verified(self, path: str, done: int) -> None:
        """Reports the bytes of a file that are verified."""
        self._count(1, self._verified, path, done)

    def elsewhere(self, done: int) -> None:
        """Reports the bytes on disk while another fetch has its turn."""
        self._report(FetchProgress("downloading", done, self._total, waits=True))

    def _count(self, which: int, by_path: dict[str, int], path: str, done: int) -> None:
        with self._lock:
            self._sums[which] += done - by_path.get(path, 0)
            by_path[path] = done
            now = time.monotonic()
            last = self._sums[which] == self._total  # the end of a stage is always reported
            if now - self._last < INTERVAL and not last:
                return
            self._last = now
            downloaded, verified = self._sums
            if downloaded < self._total:
                self._report(FetchProgress("downloading", downloaded, self._total))
            else:
                self._report(FetchProgress("verifying", verified, self._total))


class FetchProblem(Exception):
    """The fetch failed. `permanent`: retrying does not help; otherwise it may after `retry_after` seconds."""

    def __init__(self, message: str, *, permanent: bool, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.permanent = permanent
        self.retry_after = retry_after


async def fetch(
    model_cache: ModelCache,
    model_id: str,
    manifest: Manifest,
    progress: Callable[[FetchProgress], None],
    *,
    spare: bool = False,
) -> Path:
    """Returns the folder with all files of a manifest; fetches them if necessary.

    Without room on the disk it drops spare files, unless its own are `spare`.

    Of several processes that share the volume one fetches, and the others wait for it. After an error, a cancellation
    or the end of the process, the next fetch resumes. `progress` is called on the event loop.

    A cancelled call returns once the threads have closed the files: within the read timeout of `hub/repository.py`.

    Raises:
        FetchProblem: the hub or the disk failed, or the files are not as the manifest describes them.
    """
    loop = asyncio.get_running_loop()
    stop = threading.Event()

    def report(made: FetchProgress) -> None:
        loop.call_soon_threadsafe(progress, made)

    # A separate thread: a fetch takes hours, and the event loop's few threads are for short work.
    executor = ThreadPoolExecutor(1, thread_name_prefix="fetch")
    work = loop.run_in_executor(executor, _Fetch(model_cache, model_id, manifest, report, stop, spare).run)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([work])
        work.exception()  # marks the exception as retrieved
        raise
    finally:
        stop.set()
        executor.shutdown(wait=False)


class _Fetch:
    """A blocking fetch; its threads end when `stop` is set."""

    def __init__(
        self,
        model_cache: ModelCache,
        model_id: str,
        manifest: Manifest,
        report: Callable[[FetchProgress], None],
        stop: threading.Event,
        spare: bool,
    ) -> None:
        self._model_cache = model_cache
        self._spare = spare
        self._id = model_id
        self._manifest = manifest
        self._stop = stop
        self._folder = model_cache.model_folder(model_id, manifest)
        self._staging = model_cache.staging(model_id, manifest)
        self._meter = Meter(manifest.size, report)

    def run(self) -> Path:
        try:
            self._run()
        except AllmError as error:
            passing = isinstance(error, ModelNotReady | Overloaded | Cancelled)
            retry_after = error.retry_after if isinstance(error, Overloaded) else WAIT_SECONDS
            raise FetchProblem(
                error.message, permanent=not passing, retry_after=retry_after if passing else None
            ) from error
        except OSError as error:
            where = error.filename or self._model_cache.folder
            raise FetchProblem(
                f"{where} cannot be written: {error.strerror or error}", permanent=False, retry_after=DISK_SECONDS
            ) from error
        return self._folder

    def _run(self) -> None:
        problems = self._model_cache.find_problems(self._manifest, self._folder)
        if problems and not self._manifest.repository:
            raise FetchProblem(_sentences(problems), permanent=True)
        with contextlib.ExitStack() as stack:
            while problems and not self._may_begin(stack):
                self._meter.elsewhere(on_disk(self._manifest, self._staging))
                if self._stop.wait(LOCK_SECONDS):
                    raise Cancelled(f"{self._id}: the fetch was stopped")
                problems = self._model_cache.find_problems(self._manifest, self._folder)
            if problems and (problems := self._model_cache.find_problems(self._manifest, self._folder)):
                self._make_staging(problems)
                self._check_space()
                self._fetch_all()
                missing = self._model_cache.find_problems(self._manifest, self._staging)
                if missing:
                    raise FetchProblem(_sentences(missing), permanent=False, retry_after=WAIT_SECONDS)
                publish(self._manifest, self._staging, self._folder)

    def _may_begin(self, stack: contextlib.ExitStack) -> bool:
        """Takes a fetch slot and the fetch lock until the stack ends; returns whether both were free."""
        with contextlib.ExitStack() as turn:
            if not _fetching.acquire(blocking=False):
                return False
            turn.callback(_fetching.release)
            lock = self._model_cache.fetch_lock(self._id, self._manifest)
            if not lock.take():
                return False
            turn.callback(lock.release)
            stack.push(turn.pop_all())
        return True

    def _make_staging(self, problems: list[str]) -> None:
        """Prepares the staging folder: from an earlier attempt, or from a published folder that is damaged."""
        staging = self._staging
        if staging.is_symlink():
            staging.unlink()
        if self._folder.exists():
            log.warning("published files are damaged", extra={"model": self._id, "problem": _sentences(problems)})
            if staging.exists():
                shutil.rmtree(staging)
            staging.parent.mkdir(parents=True, exist_ok=True)
            self._folder.rename(staging)
            for file in self._manifest.files:  # unlinked, not changed: other processes may have them open
                path = staging / file.path
                if path.is_file() and path.lstat().st_size != file.size:
                    path.unlink()
        staging.mkdir(parents=True, exist_ok=True)
        prune(self._manifest, staging)

    def _check_space(self) -> None:
        needed = self._manifest.size - on_disk(self._manifest, self._staging)
        free, dropped = shutil.disk_usage(self._staging).free, False
        if (shortage := needed + MARGIN - free) > 0 and not self._spare:
            dropped = self._model_cache.make_room(shortage)
            free = shutil.disk_usage(self._staging).free
        if needed + MARGIN > free:
            raise FetchProblem(
                f"{self._id} needs {bytes_word(needed)} more in {self._model_cache.folder} (ALLM_MODELS_DIR), and a "
                f"margin of {bytes_word(MARGIN)}; {bytes_word(free)} are free: remove models or other files",
                permanent=False,
                retry_after=WAIT_SECONDS if dropped else DISK_SECONDS,  # some may still be fetched, and go in a moment
            )

    def _fetch_all(self) -> None:
        largest_first = sorted(self._manifest.files, key=lambda file: -file.size)
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="fetch") as executor:
            running: list[Future[None]] = [executor.submit(self._fetch_one, file) for file in largest_first]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            errors = [error for future in done if (error := future.exception())]
            if errors:
                self._stop.set()
                executor.shutdown(cancel_futures=True)
                raise next((error for error in errors if not isinstance(error, Cancelled)), errors[0])

    def _fetch_one(self, file: ManifestFile) -> None:
        """Fetches and verifies a file; fetches a damaged one once more, from zero."""
        manifest, path = self._manifest, self._staging / file.path
        for _ in range(2):
            try:
                download(
                    manifest.repository,
                    manifest.revision,
                    file,
                    self._staging,
                    lambda done: self._meter.downloaded(file.path, done),
                    self._stop,
                )
                wrong = problem(
                    file, self._staging, lambda done: self._meter.verified(file.path, done), self._stop, links=False
                )
            except Damaged as error:
                wrong = error.message
            if not wrong:
                sync(path)
                return
            log.warning("a fetched file is damaged", extra={"model": self._id, "problem": wrong})
            path.unlink(missing_ok=True)
            self._meter.downloaded(file.path, 0)
            self._meter.verified(file.path, 0)
        raise FetchProblem(f"{self._id}: fetched twice and damaged both times: {wrong}", permanent=True)


def _sentences(problems: list[str]) -> str:
    """Joins the first three sentences."""
    more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more


SMALL = 16 * 1024 * 1024  # bytes


def on_disk(manifest: Manifest, staging: Path) -> int:
    """Returns the bytes of the manifest's files that are on disk."""
    total = 0
    for file in manifest.files:
        with contextlib.suppress(OSError):
            total += min((staging / file.path).lstat().st_size, file.size)
    return total


def prune(manifest: Manifest, staging: Path) -> None:
    """Removes links, files that the manifest does not name, and files that cannot be resumed.

    Those include small files without a hash: after a power cut such a file may have its size, but not its content.

    Raises:
        OSError: something cannot be removed.
    """
    _prune(staging, "", {file.path: file for file in manifest.files}, _folders(manifest))


def publish(manifest: Manifest, staging: Path, target: Path) -> None:
    """Publishes the staging folder as `target`, with one rename. Its files are synced already.

    Raises:
        OSError: it failed; then `target` does not exist.
    """
    for folder in sorted(_folders(manifest), reverse=True):
        sync(staging / folder)
    for attempt in (1, 2, 3):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            staging.rename(target)
            break
        except FileNotFoundError:  # another process discarded a generation and removed the empty parent
            if attempt == 3:
                raise
    sync(target.parent)


def _folders(manifest: Manifest) -> set[str]:
    """Returns every folder with a file of the manifest below it; "" is the top."""
    parts = [file.path.split("/")[:-1] for file in manifest.files]
    return {"/".join(names[:depth]) for names in parts for depth in range(len(names) + 1)}


def _prune(folder: Path, prefix: str, files: Mapping[str, ManifestFile], folders: set[str]) -> None:
    for entry in list(folder.iterdir()):
        path = prefix + entry.name
        if entry.is_symlink() or not entry.is_dir():
            file = files.get(path)
            if entry.is_symlink() or not entry.is_file() or not file or (not file.sha256 and file.size <= SMALL):
                entry.unlink()
        elif path in folders:
            _prune(entry, path + "/", files, folders)
        else:
            shutil.rmtree(entry)
