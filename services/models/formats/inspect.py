"""Inspects a model at registration: its properties, the files that belong to it, and their validity.

A static table maps each format to one module. Weights are never read, so that a source on the hub is inspected without
downloading it. The operator sets the format; other files in the folder do not change it. Only the import of folders
without a description guesses formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from services.errors import InvalidRequest, ModelInvalid
from services.models.descriptor import FORMATS, Format
from services.models.formats.config import CONFIG, read_config
from services.models.formats.diffusers import INDEX as PIPELINE
from services.models.formats.diffusers import inspect_diffusers
from services.models.formats.finding import Finding
from services.models.formats.gguf import inspect_gguf, splits_in
from services.models.formats.safetensors import inspect_safetensors
from services.models.formats.whisper import CHECKPOINT, CTRANSLATE2, VOCABULARIES, inspect_whisper, layouts_in
from services.models.hub.source import FileTree

_INSPECTORS: Mapping[Format, Callable[[FileTree, str], Finding]] = {
    "gguf": inspect_gguf,
    "safetensors": lambda tree, _: inspect_safetensors(tree),
    "diffusers": inspect_diffusers,
    "whisper": inspect_whisper,
}


def guess(tree: FileTree) -> list[tuple[Format, str]]:
    """Returns the formats, each with its file if it takes one, that fit the file names and config.json's model_type.

    Empty if there is no usable model. With several, an operator must choose.

    Raises:
        ModelInvalid: the names of split GGUF files have impossible numbers.
    """
    found: list[tuple[Format, str]] = [("gguf", split[0]) for split in splits_in(tree)]
    layouts = layouts_in(tree)
    if PIPELINE in tree.files:
        found.append(("diffusers", ""))
    model_type = _model_type(tree)
    if "transformers" in layouts and CONFIG in tree.files:
        found.append(("whisper" if model_type == "whisper" else "safetensors", ""))
    converted = layouts.get("CTranslate2", [])
    if CTRANSLATE2 in converted and any(name in converted for name in VOCABULARIES) and ("whisper", "") not in found:
        found.append(("whisper", ""))
    if PIPELINE not in tree.files and model_type in ("", "whisper"):  # otherwise a `.pt` is a training state
        found += [("whisper", path) for path in layouts.get("OpenAI", []) if path.endswith(CHECKPOINT)]
    return found


def _model_type(tree: FileTree) -> str:
    """Returns the model_type; empty if config.json is missing or invalid, which registration reports later."""
    try:
        return read_config(tree).model_type if CONFIG in tree.files else ""
    except ModelInvalid:
        return ""


def inspect(tree: FileTree, format: Format, file: str = "") -> Finding:
    """Inspects a model in this format. `file` is the file that the source names, if any.

    Raises:
        ModelInvalid: files are missing, ambiguous or damaged; names them.
        InvalidRequest: the format does not exist, or takes no single file; `param` names the wrong parameter.
    """
    if format not in _INSPECTORS:
        raise InvalidRequest(f"the format {str(format)[:100]!r} is none of {', '.join(FORMATS)}", param="format")
    if file and format == "safetensors":
        raise InvalidRequest(f"the format {format} takes a folder: {file[:200]} is one file of it", param="source")
    return _INSPECTORS[format](tree, file)
