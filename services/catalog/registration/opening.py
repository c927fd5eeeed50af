"""Opens a source, local or on the hub, and lists its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from services.errors import ModelInvalid
from services.models.hub.repository import HubTree
from services.models.hub.source import HubSource, LocalSource, Source
from services.models.hub.source_tree import FileTree, LocalTree


def open_source(source: Source, roots: Sequence[Path]) -> tuple[FileTree, str]:
    """Returns a source's file tree, and the file that it names (empty: none). Blocks. Raises what the trees raise."""
    if isinstance(source, HubSource):
        return HubTree.open_repository(source), source.file
    return _open_local(source, roots)


def _open_local(source: LocalSource, roots: Sequence[Path]) -> tuple[FileTree, str]:
    path = source.path
    if path.is_dir():
        return LocalTree(path, roots), ""
    if not path.is_file():
        raise ModelInvalid(f"{path}: there is no such file or folder", param="source")
    # The neighbouring files too: a split model has more than one file.
    return LocalTree(path.parent, roots, depth=0, wanted=path.name), path.name
