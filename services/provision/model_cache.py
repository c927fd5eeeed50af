"""ALLM_MODELS_DIR: where the files of each manifest lie, whether they are whole, and who uses them.

    <id>/<digest>/...                 published: whole and verified when it appeared
    .partial/<id>--<digest>/...       being fetched
    .locks/<id>--<digest>.fetch       held alone by the replica that fetches
    .locks/<id>--<digest>.serve       held together by the replicas that serve
    .discarded/...                    on its way out

Names that begin with a dot never are those of models. Local models stay where they are: none of this concerns them.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from services.models.manifest import Manifest
from services.provision.verify import problem, size_problem
from services.provision.volume_lock import VolumeLock

_DIGEST = re.compile(r"[0-9a-f]{16}")
LONGEST_NAME = 150  # characters; filesystems take 255, of which locks need some


class Hold:
    """Says that this replica serves some files, until released. A killed process releases all of its holds."""

    def __init__(self, *locks: VolumeLock) -> None:
        self._locks = list(locks)

    def release(self) -> None:
        """Ends it; a second time does nothing."""
        while self._locks:
            self._locks.pop().release()

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class ModelCache:
    """The folder that models are fetched to, possibly shared by replicas."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, model_id: str, manifest: Manifest) -> Path:
        """The folder that the files of a manifest lie in, there or not; for a local one its own."""
        if not manifest.repository:
            return Path(manifest.folder)
        return self.folder / safe_name(model_id) / manifest.digest[:16]

    def staging(self, model_id: str, manifest: Manifest) -> Path:
        """The folder that they are fetched to; it outlives the process, so that the next one goes on from there."""
        return self.folder / ".partial" / f"{safe_name(model_id)}--{manifest.digest[:16]}"

    def fetch_lock(self, model_id: str, manifest: Manifest) -> VolumeLock:
        """Whoever holds it alone may write to the staging folder and publish."""
        return self._lock(safe_name(model_id), manifest.digest[:16], "fetch")

    def whole(self, manifest: Manifest, folder: Path) -> list[str]:
        """What is missing in `folder`, or has the wrong size; quick, reads no file.

        Raises:
            ModelInvalid: a path of the manifest leads out of its folder.
        """
        manifest.check()
        links = not manifest.repository
        return [sentence for file in manifest.files if (sentence := size_problem(file, folder, links=links))]

    def verify(
        self, manifest: Manifest, folder: Path, progress: Callable[[int], None], stop: threading.Event
    ) -> list[str]:
        """What is wrong in `folder`, hashes included. Blocks for as long as reading everything takes.

        `progress` is called with the bytes verified so far, of `manifest.size`.

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

    def hold(self, model_id: str, *manifests: Manifest) -> Hold:
        """Says that this replica serves these files, there already or not: nobody discards them meanwhile.

        Waits while somebody is just discarding them, which takes two renames: look with `whole` after, not before.

        Raises:
            OSError: the volume cannot be written to.
        """
        with contextlib.ExitStack() as taken:
            locks = []
            for manifest in manifests:
                if manifest.repository:
                    lock = self._lock(safe_name(model_id), manifest.digest[:16], "serve")
                    lock.wait_shared()
                    taken.callback(lock.release)
                    locks.append(lock)
            taken.pop_all()
        return Hold(*locks)

    def discard(self, model_id: str, manifest: Manifest) -> bool:
        """Removes the files, fetched wholly or in part, unless a replica serves or fetches them; says whether.

        They disappear at once. Local models are never touched; for them the answer is no.

        Raises:
            OSError: the volume cannot be written to.
        """
        if not manifest.repository:
            return False
        return self._discard(safe_name(model_id), manifest.digest[:16])

    def sweep(self, model_id: str, keep: Collection[Manifest]) -> None:
        """Discards all of a model but these: generations that were given up, or replaced while no service ran.

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
            # Operators may keep folders of their own here: those have no lock.
            if _DIGEST.fullmatch(digest) and self._lock(name, digest, "serve").exists:
                self._discard(name, digest)

    def _discard(self, name: str, digest: str) -> bool:
        place, staging = self.folder / name / digest, self.folder / ".partial" / f"{name}--{digest}"
        bin_ = self.folder / ".discarded"
        with contextlib.ExitStack() as stack:
            for lock in (self._lock(name, digest, "fetch"), self._lock(name, digest, "serve")):
                stack.callback(lock.release)
                if not lock.take():
                    return False
            bin_.mkdir(parents=True, exist_ok=True)
            for folder in (place, staging):
                with contextlib.suppress(FileNotFoundError):
                    folder.rename(bin_ / uuid.uuid4().hex)
        with contextlib.suppress(OSError):  # another generation is in it
            place.parent.rmdir()
        for left in list(bin_.iterdir()):  # also what a killed process left
            shutil.rmtree(left, ignore_errors=True)
        return True

    def _lock(self, name: str, digest: str, kind: str) -> VolumeLock:
        return VolumeLock(self.folder / ".locks" / f"{name}--{digest}.{kind}")

    def _entries(self, folder: Path) -> list[Path]:
        try:
            return list(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []


def safe_name(model_id: str) -> str:
    """A file name for an id: no two ids have the same, none is hidden, leads elsewhere or is too long."""
    name = quote(model_id, safe="@+", errors="surrogatepass")
    if not name:
        return "%"
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(model_id.encode(errors="surrogatepass")).hexdigest()
    return f"{name[: LONGEST_NAME - 34]}%-{digest[:32]}"  # no quoted name has `%-`
