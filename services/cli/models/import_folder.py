"""Registers the models in an existing folder; does not change the folder, and trusts no metadata files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from allm.models.v1 import model_service_pb2

from services.cli.models.catalog import CatalogClient
from services.cli.models.connection import CallRefused
from services.cli.models.page import reason_word, state_word
from services.cli.models.progress import HOPELESS
from services.cli.problem import Problem
from services.errors import AllmError
from services.models.formats.inspect import guess
from services.models.hub.source import LocalTree

MAX_ENTRIES = 10_000
MAX_ID = 128  # characters
_FORBIDDEN = re.compile(r"[^A-Za-z0-9._:@+/-]+")
_START = re.compile(r"^[^A-Za-z0-9]+")
_SHARD = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
ROOTS = "ALLM_MODEL_ROOTS"

Outcome = Literal["taken", "would take", "refused", "skipped"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry that may be a model. Exactly one of `format` and `reason` is set."""

    id: str
    path: Path  # the path to register
    format: str = ""
    reason: str = ""  # why its format cannot be determined
    refused: bool = False  # whether an operator should look into it


@dataclass(frozen=True, slots=True)
class Entry:
    """The outcome for a candidate."""

    candidate: Candidate
    outcome: Outcome
    reason: str = ""

    def line(self) -> str:
        """Returns the entry as a line for people."""
        what = f"{self.candidate.id} ({self.candidate.format})" if self.candidate.format else str(self.candidate.path)
        return f"{self.outcome} {what}{': ' if self.reason else ''}{self.reason}"

    def document(self) -> dict[str, Any]:
        """Returns the entry as JSON."""
        return {
            "path": str(self.candidate.path),
            "id": self.candidate.id,
            "format": self.candidate.format,
            "outcome": self.outcome.replace(" ", "_"),
            "reason": self.reason,
        }


def import_folder(
    folder: Path, roots: Sequence[Path], catalog: CatalogClient | None, report: Callable[[Entry], None]
) -> list[Entry]:
    """Registers every model in `folder`, and passes each entry to `report` immediately; without a catalog a dry run.

    Raises:
        Problem: the folder cannot be read, or the catalog does not answer.
    """
    entries: list[Entry] = []
    for candidate in _candidates(folder.absolute(), roots):
        entry = _register(candidate, catalog)
        report(entry)
        entries.append(entry)
    return entries


def summary(entries: Sequence[Entry]) -> str:
    """Summarizes the outcomes: `2 taken, 1 refused, 0 skipped`, without zeros."""
    counts = {outcome: sum(entry.outcome == outcome for entry in entries) for outcome in OUTCOMES}
    parts = [f"{count} {outcome}" for outcome, count in counts.items() if count]
    return ", ".join(parts) or "the folder is empty"


def hint(entries: Sequence[Entry], folder: Path) -> str:
    """Returns advice if the catalog may not read the folder; empty otherwise."""
    if not any(ROOTS in entry.reason for entry in entries):
        return ""
    return (
        f"allm registers files only from below {ROOTS}: start it with {ROOTS}={folder.absolute()} "
        "(comma-separated, if there are others), and import again"
    )


def model_name(name: str) -> str:
    """Derives a valid id from a folder's or a file's name: forbidden characters become `-`."""
    if shard := _SHARD.fullmatch(name):
        name = shard["name"]
    elif name.lower().endswith(".gguf"):
        name = name[: -len(".gguf")]
    return _START.sub("", _FORBIDDEN.sub("-", name))[:MAX_ID].rstrip("-") or "model"


def _register(candidate: Candidate, catalog: CatalogClient | None) -> Entry:
    if candidate.reason:
        return Entry(candidate, "refused" if candidate.refused else "skipped", candidate.reason)
    if catalog is None:
        return Entry(candidate, "would take")
    try:
        request = model_service_pb2.RegisterModelRequest(
            id=candidate.id, source=candidate.path.as_uri(), format=candidate.format
        )
        model = catalog.register(request)
    except CallRefused as refusal:
        return Entry(candidate, "refused", str(refusal))
    # Other states will change soon: their present reason is not worth reporting.
    reason = reason_word(model.reason, model.id) if state_word(model.state) in HOPELESS else ""
    return Entry(candidate, "taken", reason)


def _candidates(folder: Path, roots: Sequence[Path]) -> Iterator[Candidate]:
    for entry in _entries(folder):
        if not entry.is_dir():
            if file := _file(entry, model_name(entry.name)):
                yield file
            continue
        found = _folder(entry, model_name(entry.name), roots, nested=False)
        inner = [] if found.format or found.refused else [_inner(entry, each, roots) for each in _entries(entry)]
        # A folder that is not a model but contains some is an organisation's: org/name.
        models = [each for each in inner if each and (each.format or each.refused)]
        yield from models or [found]


def _inner(parent: Path, entry: Path, roots: Sequence[Path]) -> Candidate | None:
    name = model_name(f"{parent.name}/{entry.name}")
    return _folder(entry, name, roots, nested=True) if entry.is_dir() else None


def _entries(folder: Path) -> list[Path]:
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise Problem(f"{folder}: {error.strerror}") from error
    if len(entries) > MAX_ENTRIES:
        raise Problem(f"{folder} has {len(entries)} entries; at most {MAX_ENTRIES} are allowed")
    return entries


def _file(path: Path, name: str) -> Candidate | None:
    """Examines a file next to the folders: a GGUF is a model, a split one by its first part; others are skipped."""
    if path.suffix.lower() != ".gguf":
        return Candidate(name, path, reason="neither a folder nor a .gguf file")
    shard = _SHARD.fullmatch(path.name)
    return Candidate(name, path, "gguf") if shard is None or int(shard["number"]) == 1 else None


def _folder(path: Path, name: str, roots: Sequence[Path], *, nested: bool) -> Candidate:
    """Examines a folder. Unless `nested`, model files in subfolders make those the models."""
    try:
        formats = guess(LocalTree(path, [path, *roots]))
    except AllmError as error:
        return Candidate(name, path, reason=str(error), refused=True)
    if not formats or (not nested and all("/" in file for _, file in formats)):
        return Candidate(name, path, reason="no model of a known format in it")
    if len(formats) > 1:
        choices = ", ".join(f"{format} ({file})" if file else format for format, file in formats)
        reason = f"ambiguous, it could be {choices}: register it with `allm models add --format`"
        return Candidate(name, path, reason=reason, refused=True)
    ((format, file),) = formats
    return Candidate(name, path / file if file else path, format)
