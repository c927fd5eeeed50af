"""Inspects a LoRA: one safetensors file with two small factors for each matrix of a model that it changes.

Two naming schemes are known: diffusers' own, with dots as in the model, and that of kohya's scripts, with `_` instead.
Files with other names are matched only when the model is loaded. An adapter next to a model's files is refused, because
transformers would load it into the model automatically.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.errors import ModelInvalid
from services.models.formats.finding import listed, manifest_of, place
from services.models.formats.safetensors_header import Tensors, read_tensors
from services.models.hub.source import FileTree
from services.models.manifest import Manifest

ADAPTER = "adapter_config.json"
SUFFIX = ".safetensors"
_DOWN = re.compile(
    r"(?P<module>.+?)(?P<how>[._]lora(?:_linear_layer)?\.down|\.lora_down|\.lora_A)(?P<rest>(?:\.[A-Za-z0-9_]+)?\.weight)"
)
_UP = {"down": "up", "lora_A": "lora_B"}
_OTHERS = {
    "dora_scale": "DoRA",
    "hada_w1_a": "LoHa",
    "lokr_w1": "LoKr",
    "oft_blocks": "OFT",
    "oft_diag": "OFT",
    "diff_b": "weights' differences",
}
_KOHYA = {
    "lora_unet_": ("unet", "transformer"),
    "lora_transformer_": ("transformer",),
    "lora_te_": ("text_encoder",),
    "lora_te1_": ("text_encoder",),
    "lora_te2_": ("text_encoder_2",),
    "lora_te3_": ("text_encoder_3",),
}
_COMPONENTS = frozenset({"unet", "transformer", "text_encoder", "text_encoder_2", "text_encoder_3"})
_KEYS = re.compile(r".*attn2[._](?:processor\.)?to_k")
_PLAIN_KEYS = ".attn2.to_k.weight"


def refuse_adapter(tree: FileTree, folder: str = "") -> None:
    """Checks that `folder` (empty, or ends with `/`) holds no adapter.

    Only local folders are checked, because they are used as they are; from a repository only the model's own files are
    fetched.

    Raises:
        ModelInvalid: there is an adapter.
    """
    path = folder + ADAPTER
    if tree.folder and path in tree.files:
        raise ModelInvalid(f"{place(tree)}: {path} would change the model when it is loaded: move it away")


@dataclass(frozen=True, slots=True)
class _Change:
    """The size of the matrix that a LoRA changes."""

    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True)
class LoraFile:
    """A LoRA's file and the matrices that it changes."""

    manifest: Manifest
    changes: Mapping[str, _Change]  # by the file's name for the matrix


def inspect_lora(tree: FileTree, file: str) -> LoraFile:
    """Checks a LoRA's header. `file` is the named file; if empty, the tree must hold exactly one.

    Raises:
        ModelInvalid: the file does not exist, is damaged or no LoRA; says what.
    """
    path = file or _only(tree)
    if path not in tree.files:
        raise ModelInvalid(f"{place(tree)}: {path[:200]} is missing")
    if not path.lower().endswith(SUFFIX):
        raise ModelInvalid(f"{path[:200]}: a LoRA is a {SUFFIX} file")
    changes = _changes(read_tensors(tree, path), path)
    return LoraFile(manifest_of(tree, (tree.files[path],), path), changes)


def check_fit(lora: LoraFile, model: Mapping[str, Tensors]) -> None:
    """Checks by names and shapes that a LoRA fits a model.

    `model` maps components to their tensors; a checkpoint in its original layout has all of them under "".

    Raises:
        ModelInvalid: it was made for another model; names the mismatch.
    """
    path = lora.manifest.primary
    widths = {
        tensor.shape[1]
        for tensors in model.values()
        for name, tensor in tensors.items()
        if name.endswith(_PLAIN_KEYS) and len(tensor.shape) > 1
    }
    for name, change in lora.changes.items():
        if widths and _KEYS.fullmatch(name) and change.inputs not in widths:
            theirs = ", ".join(map(str, sorted(widths)))
            raise ModelInvalid(
                f"{path} was made for another model: {name} in it expects prompt embeddings of width {change.inputs}, "
                f"this model has {theirs}"
            )
    if "" not in model:
        _check_matrices(lora, model)


def _check_matrices(lora: LoraFile, model: Mapping[str, Tensors]) -> None:
    """Checks the changed matrices against those of the model."""
    path = lora.manifest.primary
    matrices = dict(_matrices(model))
    unknown = []
    for name, change in lora.changes.items():
        shape = matrices.get(_current_name(name))
        if shape is None:
            if name.partition(".")[0] in _COMPONENTS:
                unknown.append(name)
        elif (shape[0], shape[1]) != (change.outputs, change.inputs):
            raise ModelInvalid(
                f"{path} was made for another model: {name} in it changes a {change.outputs}x{change.inputs} matrix, "
                f"which is {shape[0]}x{shape[1]} in this model"
            )
    if unknown:
        what = f"{len(unknown)} of its {len(lora.changes)} matrices are not in this one, such as {min(unknown)}"
        raise ModelInvalid(f"{path} was made for another model: {what}")


def _matrices(model: Mapping[str, Tensors]) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Yields every matrix under each of the names that LoRAs use for it, with its shape."""
    for component, tensors in model.items():
        for name, tensor in tensors.items():
            module, dot, kind = name.rpartition(".")
            if kind != "weight" or not dot or len(tensor.shape) < 2:
                continue
            module = module.removeprefix("text_model.")
            yield f"{component}.{module}", tensor.shape
            for prefix, components in _KOHYA.items():
                if component in components:
                    yield prefix + module.replace(".", "_"), tensor.shape


def _current_name(name: str) -> str:
    """Converts older names: diffusers used attention processors' names, transformers had one more level in encoders."""
    name = name.replace(".text_model.", ".").replace("_text_model_", "_")
    return name.replace(".processor.to_out", ".to_out.0").replace(".processor.to_", ".to_")


def _changes(tensors: Tensors, path: str) -> dict[str, _Change]:
    found: dict[str, _Change] = {}
    for name, down in tensors.items():
        match = _DOWN.fullmatch(name)
        if not match:
            continue
        how = match["how"]
        for old, new in _UP.items():
            how = how.replace(old, new)
        up = tensors.get(match["module"] + how + match["rest"])
        if up is None or len(down.shape) < 2 or len(up.shape) < 2:
            raise ModelInvalid(f"{path} is not a LoRA: {name[:200]} has no counterpart")
        if down.shape[0] != up.shape[1]:
            raise ModelInvalid(
                f"{path} is corrupt: {name[:200]} has rank {down.shape[0]}, its counterpart {up.shape[1]}"
            )
        found[match["module"]] = _Change(inputs=down.shape[1], outputs=up.shape[0])
    for mark, kind in _OTHERS.items():
        if any(mark in name for name in tensors):
            raise ModelInvalid(f"{path} contains {kind}, which is not LoRA and not supported")
    if not found:
        raise ModelInvalid(f"{path} is not a LoRA: it has no pairs of small matrices, such as lora_A and lora_B")
    return found


def _only(tree: FileTree) -> str:
    names = [path for path in tree.files if "/" not in path and path.lower().endswith(SUFFIX)]
    if len(names) == 1:
        return names[0]
    if not names:
        raise ModelInvalid(f"{place(tree)} has no {SUFFIX} file")
    raise ModelInvalid(f"{place(tree)} has several files: name one of {listed(names)}")
