"""Looks at a model when it is registered: what it is, which files belong to it, and whether they can be right.

One module for each format, in a static table. Weights are never read, so that a source on the hub is inspected
without downloading it. The format is what the operator said; what else lies in the folder does not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from services.errors import InvalidRequest
from services.models.descriptor import FORMATS, Format
from services.models.formats.diffusers import inspect_diffusers
from services.models.formats.finding import Finding
from services.models.formats.gguf import inspect_gguf
from services.models.formats.safetensors import inspect_safetensors
from services.models.formats.whisper import inspect_whisper
from services.models.hub.source_tree import FileTree

_FOLDERS: Mapping[Format, Callable[[FileTree], Finding]] = {
    "safetensors": inspect_safetensors,
}
_FILES: Mapping[Format, Callable[[FileTree, str], Finding]] = {
    "gguf": inspect_gguf,
    "diffusers": inspect_diffusers,
    "whisper": inspect_whisper,
}


def inspect(tree: FileTree, format: Format, file: str = "") -> Finding:
    """Inspects a model of that format. `file` is the one file of the source that was named, if one was.

    Raises:
        ModelInvalid: files are missing, ambiguous or damaged; names them.
        InvalidRequest: there is no such format, or it has no single files; `param` says which is wrong.
    """
    if format in _FILES:
        return _FILES[format](tree, file)
    if format not in _FOLDERS:
        raise InvalidRequest(f"the format {str(format)[:100]!r} is none of {', '.join(FORMATS)}", param="format")
    if file:
        raise InvalidRequest(f"the format {format} takes a folder: {file[:200]} is one file of it", param="source")
    return _FOLDERS[format](tree)
