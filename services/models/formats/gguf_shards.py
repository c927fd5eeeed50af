"""Finds the files of a GGUF model by name: one file, or shards named `name-00001-of-0000N.gguf`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from services.errors import ModelInvalid
from services.models.formats.finding import missing
from services.models.hub.source_tree import FileTree

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Split:
    """All paths of one model, in order; a runtime opens the first."""

    paths: tuple[str, ...]

    @property
    def primary(self) -> str:
        """The first path."""
        return self.paths[0]


def split_of(path: str) -> Split:
    """Returns the split that a file belongs to, even if some of its files are missing.

    Raises:
        ModelInvalid: its name has impossible numbers.
    """
    match = _SPLIT.fullmatch(path)
    if not match:
        return Split((path,))
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count:
        raise ModelInvalid(f"{path} says that it is shard {number} of {count}")
    stem, suffix = match["stem"], match["suffix"]
    return Split(tuple(f"{stem}-{one:05}-of-{count:05}{suffix}" for one in range(1, count + 1)))


def splits_in(tree: FileTree) -> list[Split]:
    """Returns every GGUF model of a tree, complete or not, by path. Projectors (mmproj) belong to other models."""
    return _distinct(path for path in tree.files if path.lower().endswith(".gguf") and not _is_projector(path))


def require_all(tree: FileTree, split: Split) -> None:
    """Raises ModelInvalid, which names the missing files, if any."""
    absent = [path for path in split.paths if path not in tree.files]
    if absent:
        raise missing(tree, absent)


def _distinct(paths: Iterable[str]) -> list[Split]:
    found: dict[str, Split] = {}
    for path in sorted(paths):
        split = split_of(path)
        found.setdefault(split.primary, split)
    return list(found.values())


def _is_projector(path: str) -> bool:
    return "mmproj" in path.rpartition("/")[2].lower()
