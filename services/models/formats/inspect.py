"""Inspects a model at registration: its properties, the files that belong to it, and their validity.

A static table maps each format to one module. Weights are never read, so that a source on the hub is inspected without
downloading it. The operator sets the format; other files in the folder do not change it.
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
    """Inspects a model in this format. `file` is the file that the source names, if any.

    Raises:
        ModelInvalid: files are missing, ambiguous or damaged; names them.
        InvalidRequest: the format does not exist, or takes no single file; `param` names the wrong parameter.
    """
    if format in _FILES:
        return _FILES[format](tree, file)
    if format not in _FOLDERS:
        raise InvalidRequest(f"the format {str(format)[:100]!r} is none of {', '.join(FORMATS)}", param="format")
    if file:
        raise InvalidRequest(f"the format {format} takes a folder: {file[:200]} is one file of it", param="source")
    return _FOLDERS[format](tree)
