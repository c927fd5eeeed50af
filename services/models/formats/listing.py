"""How messages name files: the first few, and how many more there are."""

from __future__ import annotations

from collections.abc import Iterable

from services.errors import ModelInvalid
from services.models.hub.source_tree import FileTree

MOST = 10  # names in a message


def listed(names: Iterable[str]) -> str:
    """`a, b, c`, with `and 5 more` when there are too many."""
    ordered = sorted(names)
    shown = ", ".join(name[:200] for name in ordered[:MOST])
    return f"{shown} and {len(ordered) - MOST} more" if len(ordered) > MOST else shown


def place(tree: FileTree) -> str:
    """Where the files are: the repository or the folder."""
    return tree.repository or tree.folder


def there(tree: FileTree, path: str) -> bool:
    """Whether there is such a file, with something in it."""
    return path in tree.files and tree.files[path].size > 0


def require(tree: FileTree, paths: Iterable[str]) -> None:
    """Makes sure that these files are there and not empty.

    Raises:
        ModelInvalid: some are not; names all of them.
    """
    wanted = [path for path in paths if not there(tree, path)]
    if wanted:
        raise missing(tree, wanted)


def missing(tree: FileTree, paths: Iterable[str]) -> ModelInvalid:
    """The error that names files that are not there, or are empty."""
    paths = list(paths)
    return ModelInvalid(f"{place(tree)}: {listed(paths)} {'are' if len(paths) > 1 else 'is'} missing or empty")
