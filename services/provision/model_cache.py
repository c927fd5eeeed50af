"""The model cache, ALLM_MODELS_DIR: each manifest's files, their completeness, and locks on their use.

    <id>/<digest>/...                 published: complete and verified on publication
    .partial/<id>--<digest>/...       being fetched
    .locks/<id>--<digest>.fetch       held exclusively by the replica that fetches
    .locks/<id>--<digest>.serve       held in common by the replicas that serve
    .spare/<id>--<digest>             an empty file: these files serve nobody, and may go when room is needed
    .discarded/...                    being deleted

No model's name begins with a dot. Local models stay where they are; the cache does not touch them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import threading
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from urllib.parse import quote

from services.errors import Cancelled
from services.models.manifest import Manifest, ManifestFile
from services.storage import VolumeLock

_DIGEST = re.compile(r"[0-9a-f]{16}")
LONGEST_NAME = 150  # characters; filesystems allow 255, and lock names need some
CHUNK = 1024 * 1024  # bytes


class ModelCache:
    """The folder for fetched models, possibly shared by replicas."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def model_folder(self, model_id: str, manifest: Manifest) -> Path:
        """Returns the folder of a manifest's files, existing or not; for a local model its own."""
        if not manifest.repository:
            return Path(manifest.folder)
        return self.folder / safe_name(model_id) / manifest.digest[:16]

    def staging(self, model_id: str, manifest: Manifest) -> Path:
        """Returns the folder that files are fetched to; it outlives the process, so that the next one resumes."""
        return self.folder / ".partial" / _key(model_id, manifest)

    def fetch_lock(self, model_id: str, manifest: Manifest) -> VolumeLock:
        """Returns the lock whose exclusive holder may write to the staging folder and publish."""
        return self._lock(_key(model_id, manifest), "fetch")

    def find_problems(self, manifest: Manifest, folder: Path) -> list[str]:
        """Returns what is missing in `folder` or has the wrong size; quick, because it reads no file.

        Raises:
            ModelInvalid: a path of the manifest leads out of its folder.
        """
        manifest.check()
        links = not manifest.repository
        return [sentence for file in manifest.files if (sentence := size_problem(file, folder, links=links))]

    def verify(
        self, manifest: Manifest, folder: Path, progress: Callable[[int], None], stop: threading.Event
    ) -> list[str]:
        """Returns what is wrong in `folder`, including hashes. Blocks while it reads everything.

        `progress` is called with the verified bytes so far, of `manifest.size`.

        Raises:
            Cancelled: `stop` was set.
            ModelInvalid: a path of the manifest leads out of its folder.
        """
        manifest.check()
        found, before = [], 0
        for file in manifest.files:

            def report(done: int, before: int = before) -> None:
                progress(before + done)

            if sentence := problem(file, folder, report, stop, links=not manifest.repository):
                found.append(sentence)
            before += file.size
        return found

    def hold(self, model_id: str, *manifests: Manifest) -> contextlib.ExitStack:
        """Holds these files, existing or not, for this replica until the stack is closed: nobody discards them.

        A killed process releases all its holds. Waits while another process discards them, which takes two renames:
        call `find_problems` after this, not before.

        Raises:
            OSError: the volume cannot be written to.
        """
        with contextlib.ExitStack() as taken:
            for manifest in manifests:
                if manifest.repository:
                    lock = self._lock(_key(model_id, manifest), "serve")
                    lock.wait_shared()
                    taken.callback(lock.release)
                    self._mark(model_id, manifest).unlink(missing_ok=True)
            return taken.pop_all()

    def discard(self, model_id: str, manifest: Manifest) -> bool:
        """Removes the files, complete or partial, unless a replica serves or fetches them; returns whether it did.

        They disappear at once. Never touches local models; returns False for them.

        Raises:
            OSError: the volume cannot be written to.
        """
        return bool(manifest.repository) and self._discard(_key(model_id, manifest))

    def sweep(self, model_id: str, keep: Collection[Manifest]) -> None:
        """Discards all files of a model but these: those of removed generations, and of ones replaced during downtime.

        Raises:
            OSError: the volume cannot be written to.
        """
        name, kept = safe_name(model_id), {manifest.digest[:16] for manifest in keep}
        found = {path.name for path in self._entries(self.folder / name)}
        for path in self._entries(self.folder / ".partial"):
            owner, _, digest = path.name.rpartition("--")
            if owner == name:
                found.add(digest)
        for digest in sorted(found - kept):
            # Skips operators' own folders: they have no lock.
            if _DIGEST.fullmatch(digest) and self._lock(key := f"{name}--{digest}", "serve").exists:
                self._discard(key)

    def mark_spare(self, model_id: str, manifest: Manifest, *, existing: bool = False) -> bool:
        """Marks files as the first to go when room is needed, until a replica holds them.

        Returns False if a replica holds them now: then they are not marked. `existing`: only files that are here; they
        may have been dropped since they were seen.

        Raises:
            OSError: the volume cannot be written to.
        """
        lock, mark = self._lock(_key(model_id, manifest), "serve"), self._mark(model_id, manifest)
        try:
            if not lock.take():
                return False
            if existing and not self.model_folder(model_id, manifest).exists():
                return False
            mark.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # its age counts
                mark.touch(exist_ok=False)
            return True
        finally:
            lock.release()

    def is_spare(self, model_id: str, manifest: Manifest) -> bool:
        """True from `mark_spare` until `make_room` drops the files, or a replica holds them."""
        return self._mark(model_id, manifest).exists()

    def make_room(self, shortage: int) -> bool:
        """Drops spare files of all models, those marked first at first, until they were `shortage` bytes or more.

        Drops none if all of them together are smaller. A replica that still fetches some stops, and discards them
        itself. Returns whether any were dropped. Blocks.

        Raises:
            OSError: the volume cannot be written to.
        """
        sizes: dict[Path, int] = {}
        for mark in sorted(self._entries(self.folder / ".spare"), key=_age):
            name, _, digest = mark.name.rpartition("--")
            folders = (self.folder / name / digest, self.folder / ".partial" / mark.name)
            sizes[mark] = sum(_bytes_below(folder) for folder in folders)
        if sum(sizes.values()) < shortage:
            return False
        for mark, size in sizes.items():
            if shortage > 0:
                mark.unlink(missing_ok=True)
                self._discard(mark.name)
                shortage -= size
        return True

    def _mark(self, model_id: str, manifest: Manifest) -> Path:
        return self.folder / ".spare" / _key(model_id, manifest)

    def _discard(self, key: str) -> bool:
        name, _, digest = key.rpartition("--")
        published, staging = self.folder / name / digest, self.folder / ".partial" / key
        bin_ = self.folder / ".discarded"
        with contextlib.ExitStack() as stack:
            for lock in (self._lock(key, "fetch"), self._lock(key, "serve")):
                stack.callback(lock.release)
                if not lock.take():
                    return False
            bin_.mkdir(parents=True, exist_ok=True)
            (self.folder / ".spare" / key).unlink(missing_ok=True)
            for folder in (published, staging):
                with contextlib.suppress(FileNotFoundError):
                    folder.rename(bin_ / uuid.uuid4().hex)
        with contextlib.suppress(OSError):  # another generation is in it
            published.parent.rmdir()
        for left in list(bin_.iterdir()):  # including remains of a killed process
            shutil.rmtree(left, ignore_errors=True)
        return True

    def _lock(self, key: str, kind: str) -> VolumeLock:
        return VolumeLock(self.folder / ".locks" / f"{key}.{kind}")

    def _entries(self, folder: Path) -> list[Path]:
        try:
            return list(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []


def size_problem(file: ManifestFile, folder: Path, *, links: bool) -> str:
    """Checks a file's presence and size; returns a sentence, empty if it is fine. `links`: allows symbolic links."""
    path = folder / file.path
    try:
        found = path.stat() if links else path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is not a file"
    if found.st_size != file.size:
        return f"{path} has {found.st_size} bytes, expected {file.size}"
    return ""


def problem(
    file: ManifestFile, folder: Path, progress: Callable[[int], None], stop: threading.Event, *, links: bool
) -> str:
    """Checks a file, including its content if the manifest has a hash; returns a sentence, empty if fine. Blocks.

    `progress` is called with the number of verified bytes of the file.

    Raises:
        Cancelled: `stop` was set.
    """
    if sentence := size_problem(file, folder, links=links):
        return sentence
    if file.sha256:
        try:
            found = _sha256(folder / file.path, progress, stop)
        except OSError as error:
            return f"{folder / file.path} cannot be read: {error.strerror}"
        if found != file.sha256:
            return f"{folder / file.path} has SHA-256 {found}, expected {file.sha256}"
    progress(file.size)
    return ""


def _sha256(path: Path, progress: Callable[[int], None], stop: threading.Event) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as source:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while chunk := source.read(CHUNK):
            if stop.is_set():
                raise Cancelled(f"{path}: verifying was stopped")
            digest.update(chunk)
            done += len(chunk)
            progress(done)
    return digest.hexdigest()


def _key(model_id: str, manifest: Manifest) -> str:
    """Returns `<id>--<digest>`, the name of a manifest's files outside of their published folder."""
    return f"{safe_name(model_id)}--{manifest.digest[:16]}"


def safe_name(model_id: str) -> str:
    """Returns a file name for an id: unique per id, never hidden, too long or outside the folder."""
    name = quote(model_id, safe="@+", errors="surrogatepass")
    if not name:
        return "%"
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(model_id.encode(errors="surrogatepass")).hexdigest()
    return f"{name[: LONGEST_NAME - 34]}%-{digest[:32]}"  # no quoted name has `%-`


def _age(mark: Path) -> float:
    with contextlib.suppress(OSError):
        return mark.stat().st_mtime
    return 0.0


def _bytes_below(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):  # another process may be deleting them
        for path in folder.iterdir():
            total += _bytes_below(path) if path.is_dir() and not path.is_symlink() else path.lstat().st_size
    return total
