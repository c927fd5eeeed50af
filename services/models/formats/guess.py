"""Guesses the formats of a folder, for the import of folders without a description."""

from __future__ import annotations

from services.errors import ModelInvalid
from services.models.descriptor import Format
from services.models.formats.config import CONFIG, read_config
from services.models.formats.diffusers import INDEX as PIPELINE
from services.models.formats.split import splits_in
from services.models.formats.whisper import CHECKPOINT, CTRANSLATE2, VOCABULARIES, layouts_in
from services.models.hub.source_tree import FileTree


def guess(tree: FileTree) -> list[tuple[Format, str]]:
    """Returns the formats, each with its file if it takes one, that fit the file names and config.json's model_type.

    Empty if there is no usable model. With several, an operator must choose.

    Raises:
        ModelInvalid: the names of split GGUF files have impossible numbers.
    """
    found: list[tuple[Format, str]] = [("gguf", split.primary) for split in splits_in(tree)]
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
