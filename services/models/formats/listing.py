"""Helpers for messages that name files, and for checks that files exist."""

from __future__ import annotations

from collections.abc import Iterable

from services.errors import ModelInvalid
from services.models.hub.source_tree import FileTree

MOST = 10  # most names in a message


def listed(names: Iterable[str]) -> str:
    """Joins names to `a, b, c`, with `and 5 more` if there are too many."""
    ordered = sorted(names)
    shown = ", ".join(name[:200] for name in ordered[:MOST])
    return f"{shown} and {len(ordered) - MOST} more" if len(ordered) > MOST else shown


def place(tree: FileTree) -> str:
    """Returns the repository or the folder of the files."""
    return tree.repository or tree.folder


def there(tree: FileTree, path: str) -> bool:
    """True if the file exists and is not empty."""
    return path in tree.files and tree.files[path].size > 0


def require(tree: FileTree, paths: Iterable[str]) -> None:
    """Checks that these files exist and are not empty.

    Raises:
        ModelInvalid: some are missing or empty; names all of them.
    """
    wanted = [path for path in paths if not there(tree, path)]
    if wanted:
        raise missing(tree, wanted)


def missing(tree: FileTree, paths: Iterable[str]) -> ModelInvalid:
    """Builds the error that names missing or empty files."""
    paths = list(paths)
    return ModelInvalid(f"{place(tree)}: {listed(paths)} {'are' if len(paths) > 1 else 'is'} missing or empty")
