"""Refuses an adapter next to a model's files, which transformers would load into the model automatically."""

from __future__ import annotations

from services.errors import ModelInvalid
from services.models.formats.listing import place
from services.models.hub.source_tree import FileTree

ADAPTER = "adapter_config.json"


def refuse_adapter(tree: FileTree, folder: str = "") -> None:
    """Checks that `folder` (empty, or ends with `/`) holds no adapter.

    Only local folders are checked, because they are used as they are; from a repository only the model's own files are
    fetched.

    Raises:
        ModelInvalid: there is an adapter.
    """
    path = folder + ADAPTER
    if tree.folder and path in tree.files:
        raise ModelInvalid(f"{place(tree)}: {path} would change the model unasked when it is loaded: move it away")
