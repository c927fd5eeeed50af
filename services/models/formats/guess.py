"""What formats a folder could be registered as, for an import of folders that nobody has described."""

from __future__ import annotations

from services.errors import ModelInvalid
from services.models.descriptor import Format
from services.models.formats.config import CONFIG, read_config
from services.models.formats.diffusers import INDEX as PIPELINE
from services.models.formats.split import splits_in
from services.models.formats.whisper import CHECKPOINT, CTRANSLATE2, VOCABULARIES, layouts_in
from services.models.hub.source_tree import FileTree


def guess(tree: FileTree) -> list[tuple[Format, str]]:
    """Every format, with the file where it takes one, that the names of the files and config.json's model_type allow.

    None: there is nothing to be used. Several: only an operator can say which.

    Raises:
        ModelInvalid: the names of split GGUF files count in a way that cannot be.
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
    if PIPELINE not in tree.files and model_type in ("", "whisper"):  # else a `.pt` is somebody's training state
        found += [("whisper", path) for path in layouts.get("OpenAI", []) if path.endswith(CHECKPOINT)]
    return found


def _model_type(tree: FileTree) -> str:
    """Empty when config.json is missing or wrong: whoever registers the folder is told then."""
    try:
        return read_config(tree).model_type if CONFIG in tree.files else ""
    except ModelInvalid:
        return ""
