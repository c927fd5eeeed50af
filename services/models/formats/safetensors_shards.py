"""Finds and checks the safetensors weights in a folder: one file, or shards with an index of tensors."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from services.errors import ModelInvalid
from services.models.formats.document import read_object
from services.models.formats.finding import in_parallel, listed, missing, place
from services.models.formats.safetensors_header import Tensor, read_tensors
from services.models.hub.source import FileTree

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX = 32 * 1024 * 1024  # bytes; a model of 100,000 tensors takes a third of it
_SHARD = r"-\d{5}-of-(?P<count>\d{5})"
_FILE = re.compile(rf"(?P<stem>[^.]+?)(?:\.(?P<a>[^.]+?))?(?:{_SHARD})?(?:\.(?P<b>[^.]+))?\.safetensors")
_INDEX = re.compile(r"(?P<stem>[^.]+)(?:\.(?P<a>[^.]+))?\.safetensors\.index(?:\.(?P<b>[^.]+))?\.json")
_PLAIN = re.compile(r"[^/\\\x00]+\.safetensors")


@dataclass(frozen=True, slots=True)
class Weights:
    """The weight files of one model. Paths are relative to the top of the tree."""

    shards: tuple[str, ...]
    index: str = ""  # path; empty: one file without an index
    tensors: Mapping[str, str] = field(default_factory=dict)  # from the index: tensor -> path of its shard

    @property
    def files(self) -> tuple[str, ...]:
        """All paths."""
        return (*self.shards, self.index) if self.index else self.shards


@dataclass(slots=True)
class _Candidate:
    files: list[str] = field(default_factory=list)
    indexes: list[str] = field(default_factory=list)


def find_weights(tree: FileTree, folder: str = "", *, stem: str = "", variants: bool = False) -> Weights | None:
    """Finds the weights in `folder` (empty, or ends with `/`). Returns None if there are none.

    Without `variants` every file counts, and the only index is `model.safetensors.index.json`. With it,
    `model.safetensors` is preferred to variants such as `model.fp16.safetensors`. `stem` limits the search to files
    with this stem.

    Raises:
        ModelInvalid: the choice is ambiguous, the index is invalid, or shards are missing; names them.
    """
    found = _candidates(tree, folder, stem, variants)
    if not found:
        return None
    if "" not in found and len(found) > 1:
        raise _ambiguous(tree, (path for one in found.values() for path in (*one.files, *one.indexes)))
    chosen = found.get("") or next(iter(found.values()))
    if len(chosen.indexes) > 1:
        raise _ambiguous(tree, chosen.indexes)
    if chosen.indexes:
        return _indexed(tree, folder, chosen.indexes[0])
    if len(chosen.files) > 1:
        raise _ambiguous(tree, chosen.files)
    (path,) = chosen.files
    match = _FILE.fullmatch(path.removeprefix(folder))
    if match and int(match["count"] or 1) > 1:
        raise ModelInvalid(f"{place(tree)}: {path} is one shard of several, but {folder}{INDEX} is missing")
    return Weights((path,))


def check_weights(tree: FileTree, all_weights: Iterable[Weights]) -> list[dict[str, Tensor]]:
    """Reads the headers of all shards, not the weights, and checks them against their index.

    Returns the tensors of each of `all_weights`.

    Raises:
        ModelInvalid: a header is invalid, a file's size differs from its header, or the index does not fit.
    """
    all_weights = list(all_weights)
    shards = [(weights, path) for weights in all_weights for path in weights.shards]
    expected = {path: set[str]() for _, path in shards}
    for weights in {id(weights): weights for weights, _ in shards}.values():
        for tensor, path in weights.tensors.items():
            expected[path].add(tensor)

    def check(shard: tuple[Weights, str]) -> dict[str, Tensor]:
        weights, path = shard
        tensors = read_tensors(tree, path)
        if weights.index and tensors.keys() != expected[path]:
            raise _misfit(weights, path, tensors.keys(), expected[path])
        return tensors

    headers = iter(in_parallel(check, shards))
    return [{name: tensor for _ in weights.shards for name, tensor in next(headers).items()} for weights in all_weights]


def _candidates(tree: FileTree, folder: str, stem: str, variants: bool) -> dict[str, _Candidate]:
    """Groups the files and indexes by variant; '' is the plain one."""
    found: dict[str, _Candidate] = {}
    for path in tree.files:
        name = path.removeprefix(folder)
        if not path.startswith(folder) or "/" in name:
            continue
        is_file = name.endswith(".safetensors")
        match = (_FILE if is_file else _INDEX).fullmatch(name)
        if (not is_file and not match) or (stem and (not match or match["stem"] != stem)):
            continue
        variant = (match["a"] or match["b"] or "") if match and variants else ""
        if is_file:
            found.setdefault(variant, _Candidate()).files.append(path)
        elif variants or name == INDEX:
            found.setdefault(variant, _Candidate()).indexes.append(path)
    return found


def _indexed(tree: FileTree, folder: str, index: str) -> Weights:
    document = read_object(tree, index, MAX_INDEX, strict=True)
    names = document.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelInvalid(f"{index} has no weight_map that says where each tensor is")
    wrong = [name for name in names.values() if not isinstance(name, str) or not _PLAIN.fullmatch(name)]
    if wrong:
        raise ModelInvalid(
            f"{index} names {reprlib.repr(wrong[0])}, which is not a safetensors file in the same folder"
        )
    shards = sorted({folder + name for name in names.values()})
    absent = [path for path in shards if path not in tree.files]
    if absent:
        raise missing(tree, absent)
    whole = index.partition(".safetensors.index")[0] + ".safetensors"  # some runtimes prefer it
    if whole in tree.files and whole not in shards:
        raise _ambiguous(tree, (index, whole))
    return Weights(tuple(shards), index, {tensor: folder + name for tensor, name in names.items()})


def _ambiguous(tree: FileTree, paths: Iterable[str]) -> ModelInvalid:
    return ModelInvalid(
        f"{place(tree)}: the choice of weights is ambiguous: {listed(paths)}. Several files are one model only with "
        "an index that names them all"
    )


def _misfit(weights: Weights, path: str, names: Set[str], expected: set[str]) -> ModelInvalid:
    if absent := expected - names:
        return ModelInvalid(f"{path} lacks tensors that {weights.index} places in it: {listed(absent)}")
    extra = names - expected
    elsewhere = [name for name in extra if name in weights.tensors]
    if elsewhere:
        other = weights.tensors[min(elsewhere)]
        return ModelInvalid(f"{path} holds {listed(elsewhere)}, which {weights.index} places in {other}")
    return ModelInvalid(f"{path} holds tensors that {weights.index} does not name: {listed(extra)}")
