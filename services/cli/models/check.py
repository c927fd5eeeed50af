"""Compares the files of models on this machine with their manifests."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from allm.models.v1 import manifest_pb2, model_pb2
from rich.console import Console

from services.byte_count import bytes_word
from services.cli.models.page import one_line, state_word
from services.cli.models.progress import HOPELESS, byte_progress, of_replica
from services.errors import AllmError
from services.models.manifest import Manifest
from services.models.status import SERVING
from services.models.wire import read_manifest
from services.provision.model_cache import ModelCache


@dataclass(frozen=True, slots=True)
class FilesReport:
    """The findings on one model's files, or on one of its execution caches or other parts."""

    id: str
    state: str  # the model's state, such as `ready`
    generation: int
    artifact: str  # source of the execution cache or part; empty: the model's own files
    fetched: bool  # whether its files are, or should be, on this machine; if not, nothing is compared
    folder: str  # folder of its files, or the intended one
    files: int
    size_bytes: int
    hashed: int  # files whose content was compared; the others were compared by size only
    problems: tuple[str, ...]  # a sentence for each wrong file

    def document(self) -> dict[str, Any]:
        """Returns the report as JSON."""
        return {
            "id": self.id,
            "artifact": self.artifact,
            "fetched": self.fetched,
            "folder": self.folder,
            "files": self.files,
            "size_bytes": self.size_bytes,
            "hashed": self.hashed,
            "whole": self.fetched and not self.problems,
            "problems": list(self.problems),
        }

    def lines(self) -> list[str]:
        """Returns the report as lines for people."""
        name = f"{self.id} ({self.artifact})" if self.artifact else self.id
        if self.problems:
            return [f"{name}: {problem}" for problem in self.problems]
        if not self.fetched:
            what = f"generation {self.generation}" if self.state in SERVING else "the model"
            return [f"{name}: {self.state}, no files of {what} are fetched here{' yet' * (self.state not in HOPELESS)}"]
        what = f"{count_word(self.files, 'file')}, {bytes_word(self.size_bytes)} in {self.folder}"
        how = "compared by size"
        if self.hashed:
            how = f"{self.hashed} compared by SHA-256{', the others by size' * (self.hashed < self.files)}"
        return [f"{name}: ok, {what} ({how})"]


def check(
    models: Iterable[manifest_pb2.DesiredModel], folder: Path, *, deep: bool, console: Console
) -> Iterator[FilesReport]:
    """Checks the files of models below `folder` (ALLM_MODELS_DIR): their sizes, and if `deep` their hashes.

    Each model has one report, or one for each set of files on this machine: its own, and its execution caches.
    `console` shows the progress of a deep check.
    """
    model_cache = ModelCache(folder)
    for desired in models:
        sets = [("", desired.manifest), *((each.manifest.repository, each.manifest) for each in desired.artifacts)]
        found = [_check(desired.model, artifact, message, model_cache, deep, console) for artifact, message in sets]
        for part in desired.parts:  # as for the model's own files: every replica that serves the model has them
            report = _check(desired.model, "", part.manifest, model_cache, deep, console)
            found.append(replace(report, artifact=part.manifest.repository or part.manifest.primary or "base"))
        yield from [report for report in found if report.fetched] or found[:1]


def count_word(count: int, noun: str) -> str:
    """Formats a count: `1 file`, `2 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _check(
    model: model_pb2.Model,
    artifact: str,
    message: manifest_pb2.Manifest,
    model_cache: ModelCache,
    deep: bool,
    console: Console,
) -> FilesReport:
    place, fetched, problems = "", True, []
    try:
        manifest = read_manifest(message)
        folder = model_cache.model_folder(model.id, manifest)
        place = str(folder)
        name = f"{artifact}@{manifest.revision}" if artifact else ""
        fetched = not manifest.repository or folder.exists() or _in_use(model, name)
        if fetched and deep:
            problems = _verify(model_cache, model.id, manifest, folder, console)
        elif fetched:
            problems = model_cache.find_problems(manifest, folder)
    except (AllmError, OSError) as error:
        problems = [str(error)]
    return FilesReport(
        id=model.id,
        state=state_word(model.state),
        generation=model.generation,
        artifact=artifact,
        fetched=fetched,
        folder=place,
        files=len(message.files),
        size_bytes=sum(file.size_bytes for file in message.files),
        hashed=sum(bool(file.sha256) for file in message.files) if deep and fetched else 0,
        problems=tuple(problems),
    )


def _in_use(model: model_pb2.Model, artifact: str) -> bool:
    """Reports whether a replica serves the newest generation from its own files, or from this execution cache."""
    return any(
        replica.generation >= model.generation and replica.artifact == artifact and of_replica(replica, 0).serving
        for replica in model.replicas
    )


def _verify(model_cache: ModelCache, model_id: str, manifest: Manifest, place: Path, console: Console) -> list[str]:
    with byte_progress(console) as bar:
        task = bar.add_task(one_line(model_id), total=manifest.size)
        never = threading.Event()  # Ctrl-C reaches this thread anyway
        return model_cache.verify(manifest, place, lambda done: bar.update(task, completed=done), never)
