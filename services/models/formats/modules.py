"""The modules of a sentence-transformers model: `modules.json`, and a folder for each step after the transformer."""

from __future__ import annotations

import re
import reprlib

from services.errors import ModelInvalid, Unsupported
from services.models.formats.document import read_list, read_object
from services.models.formats.listing import missing
from services.models.formats.weights import WHOLE, Weights
from services.models.hub.source_tree import FileTree

MODULES = "modules.json"
INPUTS = "sentence_bert_config.json"
MAX_MODULES = 32
KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


def find_modules(tree: FileTree) -> tuple[list[str], list[Weights]]:
    """Returns the paths of all files in the modules' folders, and their weights; empty without modules.json.

    Raises:
        ModelInvalid: modules.json is invalid, or a module lacks files.
        Unsupported: no runtime supports a module's class; names it.
    """
    if MODULES not in tree.files:
        return [], []
    files: list[str] = []
    weights: list[Weights] = []
    absent: list[str] = []
    for folder, kind in _folders(tree):
        config, own = f"{folder}/config.json", f"{folder}/{WHOLE}"
        files += [path for path in (config, own) if path in tree.files]
        if own in tree.files:
            weights.append(Weights((own,)))
        elif kind == "Dense":
            absent.append(own)
        if kind in ("Dense", "Pooling") and config not in tree.files:
            absent.append(config)
    if absent:
        raise missing(tree, absent)
    return files, weights


def input_limit(tree: FileTree) -> int:
    """Returns the most tokens of an input, if the publishers set a limit below the architecture's; else 0."""
    limit = read_object(tree, INPUTS).get("max_seq_length") if INPUTS in tree.files else None
    return limit if type(limit) is int and limit > 0 else 0


def _folders(tree: FileTree) -> list[tuple[str, str]]:
    """Returns the folder and class of every module that has a folder."""
    modules = read_list(tree, MODULES)
    if len(modules) > MAX_MODULES:
        raise ModelInvalid(f"{MODULES} names {len(modules)} modules; {MAX_MODULES} are allowed")
    found = []
    for module in modules:
        folder = module.get("path") if isinstance(module, dict) else None
        kind = module.get("type") if isinstance(module, dict) else None
        if not isinstance(folder, str) or not isinstance(kind, str) or (folder and not _FOLDER.fullmatch(folder)):
            raise ModelInvalid(f"{MODULES} names {reprlib.repr(folder)}, which is no folder of a module")
        name = kind.rpartition(".")[2]
        if name not in KINDS:
            message = f"{MODULES} has a module {reprlib.repr(name)}; known are {', '.join(KINDS)}"
            raise Unsupported(message, param="source")
        if folder:
            found.append((folder, name))
    return found
