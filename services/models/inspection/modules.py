"""The modules of a sentence-transformers model: `modules.json`, and a small folder for each step after the model."""

from __future__ import annotations

import re
import reprlib

from services.models.inspection.document import read_list
from services.models.inspection.listing import missing
from services.models.inspection.weights import WHOLE, Weights
from services.models.tree import FileTree
from services.rpc.errors import ModelInvalid

MODULES = "modules.json"
MAX_MODULES = 32
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


def find_modules(tree: FileTree) -> tuple[list[str], list[Weights]]:
    """The paths of all files in the modules' folders, and those of them that are weights. None without modules.json.

    Raises:
        ModelInvalid: modules.json is wrong, or a module lacks what it needs.
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


def _folders(tree: FileTree) -> list[tuple[str, str]]:
    """Folder and class of every module that has a folder."""
    modules = read_list(tree, MODULES)
    if len(modules) > MAX_MODULES:
        raise ModelInvalid(f"{MODULES} names {len(modules)} modules; {MAX_MODULES} are allowed")
    found = []
    for module in modules:
        folder = module.get("path") if isinstance(module, dict) else None
        kind = module.get("type") if isinstance(module, dict) else None
        if not isinstance(folder, str) or not isinstance(kind, str) or (folder and not _FOLDER.fullmatch(folder)):
            raise ModelInvalid(f"{MODULES} names {reprlib.repr(folder)}, which is no folder of a module")
        if folder:
            found.append((folder, kind.rpartition(".")[2]))
    return found
