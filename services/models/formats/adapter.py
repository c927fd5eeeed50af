"""An adapter beside a model's own files, which transformers would put into the model without being asked."""

from __future__ import annotations

from services.errors import ModelInvalid
from services.models.formats.listing import place
from services.models.hub.source_tree import FileTree

ADAPTER = "adapter_config.json"


def refuse_adapter(tree: FileTree, folder: str = "") -> None:
    """Makes sure that there is none in `folder` (empty, or ends with `/`).

    Of a repository only what belongs to the model is fetched; a local folder is used as it is.

    Raises:
        ModelInvalid: there is one.
    """
    path = folder + ADAPTER
    if tree.folder and path in tree.files:
        raise ModelInvalid(f"{place(tree)}: {path} would change the model unasked when it is loaded: move it away")
