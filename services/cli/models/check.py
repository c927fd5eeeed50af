"""Files of models against their manifests, on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allm.models.v1 import manifest_pb2
from rich.console import Console

from services.cli.models.progress import byte_progress
from services.cli.models.words import bytes_word, one_line
from services.models.manifest import Manifest
from services.models.wire import read_manifest
from services.provision.shelf import Shelf
from services.rpc.errors import AllmError


@dataclass(frozen=True, slots=True)
class Report:
    """What was found of one model."""

    id: str
    folder: str  # where its files are, or should be
    files: int
    size_bytes: int
    hashed: int  # files whose content was compared; of the others only the size
    problems: tuple[str, ...]  # a sentence for each wrong file

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "id": self.id,
            "folder": self.folder,
            "files": self.files,
            "size_bytes": self.size_bytes,
            "hashed": self.hashed,
            "whole": not self.problems,
            "problems": list(self.problems),
        }

    def lines(self) -> list[str]:
        """For people."""
        if not self.problems:
            what = f"{count_word(self.files, 'file')}, {bytes_word(self.size_bytes)} in {self.folder}"
            how = "compared by size"
            if self.hashed:
                how = f"{self.hashed} compared by SHA-256{', the others by size' * (self.hashed < self.files)}"
            return [f"{self.id}: ok, {what} ({how})"]
        return [f"{self.id}: {problem}" for problem in self.problems]


def check(
    models: Iterable[tuple[str, manifest_pb2.Manifest]], folder: Path, *, deep: bool, console: Console
) -> Iterator[Report]:
    """Looks at the files of models below `folder` (ALLM_MODELS_DIR): their sizes, and if `deep` their hashes.

    `console` shows how far a deep one is.
    """
    for model_id, message in models:
        yield _check(model_id, message, Shelf(folder), deep, console)


def count_word(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _check(model_id: str, message: manifest_pb2.Manifest, shelf: Shelf, deep: bool, console: Console) -> Report:
    size = sum(file.size_bytes for file in message.files)
    place = ""
    try:
        manifest = read_manifest(message)
        place = str(shelf.place(model_id, manifest))
        if deep:
            problems = _verify(shelf, model_id, manifest, Path(place), console)
        else:
            problems = shelf.whole(manifest, Path(place))
    except (AllmError, OSError) as error:
        problems = [str(error)]
    hashed = sum(bool(file.sha256) for file in message.files) if deep else 0
    return Report(model_id, place, len(message.files), size, hashed, tuple(problems))


def _verify(shelf: Shelf, model_id: str, manifest: Manifest, place: Path, console: Console) -> list[str]:
    with byte_progress(console) as bar:
        task = bar.add_task(one_line(model_id), total=manifest.size)
        never = threading.Event()  # Ctrl-C reaches this thread anyway
        return shelf.verify(manifest, place, lambda done: bar.update(task, completed=done), never)
