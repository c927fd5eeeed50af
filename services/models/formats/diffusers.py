"""Inspects diffusers models: a folder with `model_index.json`, or a single-file checkpoint in its original layout.

The base of a checkpoint is a pipeline without its weights: its small files complete the checkpoint.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from services.errors import ModelInvalid
from services.models.formats.config import architecture_of
from services.models.formats.document import read_object
from services.models.formats.finding import Finding, listed, manifest_of, missing, place, there
from services.models.formats.lora import refuse_adapter
from services.models.formats.original_layout import Layout, layout_of
from services.models.formats.safetensors_header import Tensors, read_tensors
from services.models.formats.safetensors_shards import Weights, check_weights, find_weights
from services.models.hub.source import FileTree
from services.models.manifest import Manifest

INDEX = "model_index.json"
MAX_COMPONENTS = 64
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PROCESSORS = ("FeatureExtractor", "ImageProcessor", "Processor")
# The files that a component needs, by its kind: one of these sets.
_SCHEDULER = (("scheduler_config.json",),)
_TOKENIZER = (("tokenizer_config.json",), ("tokenizer.json",), ("vocab.json", "merges.txt"), ("spiece.model",))
_PROCESSOR = (("preprocessor_config.json",), ("processor_config.json",))
_MODEL = (("config.json",),)
_COMPANIONS = frozenset(
    """
    scheduler_config.json config.json generation_config.json preprocessor_config.json processor_config.json
    tokenizer_config.json tokenizer.json tokenizer.model vocab.json vocab.txt merges.txt spiece.model
    added_tokens.json special_tokens_map.json chat_template.jinja chat_template.json
    """.split()  # noqa: SIM905 (easier to read)
)


@dataclass(frozen=True, slots=True)
class Component:
    """A component of a pipeline."""

    name: str
    library: str
    kind: str  # class name

    @property
    def folder(self) -> str:
        """Its folder, ending with `/`."""
        return f"{self.name}/"

    @property
    def needs(self) -> tuple[tuple[str, ...], ...]:
        """The alternative sets of files, one of which must be complete."""
        if self.kind.endswith("Scheduler"):
            return _SCHEDULER
        if "Tokenizer" in self.kind:
            return _TOKENIZER
        return _PROCESSOR if self.kind.endswith(_PROCESSORS) else _MODEL

    @property
    def stem(self) -> str:
        """The file stem of its weights; empty if it has none."""
        if self.needs is not _MODEL:
            return ""
        return "diffusion_pytorch_model" if self.library == "diffusers" else "model"

    def absent(self, tree: FileTree) -> str:
        """Names its missing files, except weights; empty if none. Raises ModelInvalid if config.json is invalid."""
        folder = self.folder
        if not any(all(there(tree, folder + name) for name in names) for names in self.needs):
            return " or ".join(" + ".join(folder + name for name in names) for names in self.needs)
        if self.stem:
            read_object(tree, f"{folder}config.json")
        return ""


@dataclass(slots=True)
class _Parts:
    """The files found for all components, and the missing ones."""

    paths: set[str] = field(default_factory=set)
    weights: dict[str, Weights] = field(default_factory=dict)  # by component
    absent: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)  # weights in other formats than safetensors


def inspect_diffusers(tree: FileTree, file: str) -> Finding:
    """Checks a pipeline and all its components, or the named checkpoint, without reading the weights.

    Raises:
        ModelInvalid: files are missing, ambiguous or damaged; names them.
        Unsupported: the checkpoint's kind is unknown.
    """
    return _checkpoint(tree, file) if file else _pipeline(tree)


def components(index: dict[str, object]) -> Iterator[Component]:
    """Yields the components in model_index.json, whose entries are `"name": ["library", "Class"]`. An entry with null
    is an absent component; other entries are options.

    Raises:
        ModelInvalid: there are too many components, or one has an invalid name.
    """
    names = [
        name
        for name, value in index.items()
        if isinstance(value, list) and None not in value and any(isinstance(each, str) for each in value)
    ]
    if len(names) > MAX_COMPONENTS:
        raise ModelInvalid(f"{INDEX} names {len(names)} components; at most {MAX_COMPONENTS} are allowed")
    for name in names:
        match index[name]:
            case [str(library), str(kind)] if library and kind and _FOLDER.fullmatch(name):
                yield Component(name, library, kind)
            case value:
                raise ModelInvalid(
                    f"{INDEX} names {reprlib.repr(name)}: {reprlib.repr(value)}, which is not a component"
                )


def companions(tree: FileTree, component: Component) -> set[str]:
    """Returns the existing small files of a component.

    Raises:
        ModelInvalid: its folder holds an adapter, which its library would load automatically.
    """
    refuse_adapter(tree, component.folder)
    return {component.folder + name for name in _COMPANIONS} & tree.files.keys()


def _checkpoint(tree: FileTree, file: str) -> Finding:
    if file not in tree.files:
        raise missing(tree, [file])
    if not file.lower().endswith(".safetensors"):
        raise ModelInvalid(f"{file[:200]}: only .safetensors are supported as single files")
    tensors = read_tensors(tree, file)
    layout = layout_of(tensors, file)
    return Finding(
        format="diffusers",
        modality="image",
        architecture=layout.architecture,
        capabilities=frozenset({"image"}),
        context_tokens=0,
        files=(tree.files[file],),
        primary=file,
        tensors={"": tensors},
    )


def _pipeline(tree: FileTree) -> Finding:
    if not there(tree, INDEX):
        single = [path for path in tree.files if "/" not in path and path.endswith(".safetensors")]
        hint = f" (is the model one file? Then name it: {listed(single)})" if single else ""
        raise ModelInvalid(f"{missing(tree, [INDEX]).message}{hint}")
    index = read_object(tree, INDEX)
    architecture = architecture_of(index.get("_class_name"), f"_class_name in {INDEX}")
    parts = _Parts()
    for component in components(index):
        _collect(tree, component, parts)
    if parts.other:
        raise ModelInvalid(f"{listed(parts.other)}: only safetensors are supported, and the folder has none")
    if parts.absent:
        raise missing(tree, parts.absent)
    if not parts.weights:
        raise ModelInvalid(f"{INDEX} names no component that has weights")
    tensors = check_weights(tree, parts.weights.values())
    return Finding(
        format="diffusers",
        modality="image",
        architecture=architecture,
        capabilities=frozenset({"image"}),
        context_tokens=0,
        files=tuple(tree.files[path] for path in sorted({INDEX, *parts.paths})),
        primary="",
        tensors=dict(zip(parts.weights, tensors, strict=True)),
    )


def _collect(tree: FileTree, component: Component, parts: _Parts) -> None:
    folder = component.folder
    if lacking := component.absent(tree):
        parts.absent.append(lacking)
    parts.paths |= companions(tree, component)
    if not component.stem:
        return
    weights = find_weights(tree, folder, stem=component.stem, variants=True)
    if weights:
        parts.weights[component.name] = weights
        parts.paths.update(weights.files)
        return
    others = [path for path in tree.files if path.startswith(folder) and path.endswith((".bin", ".ckpt", ".pt"))]
    if others:
        parts.other += others
    else:
        parts.absent.append(f"{folder}{component.stem}.safetensors")


_UNUSED = "safety_checker"  # which diffusers leaves out of a pipeline made from a single file
_INPUTS = "model.diffusion_model.input_blocks.0.0.weight"
_KEYS = ".attn2.to_k.weight"  # cross-attention keys


def inspect_base(tree: FileTree, layout: Layout, tensors: Tensors) -> Manifest:
    """Returns the files that complete a checkpoint of this layout and with these tensors.

    Raises:
        ModelInvalid: the pipeline's kind or sizes differ, or files are missing or damaged; names them.
    """
    if not there(tree, INDEX):
        raise missing(tree, [INDEX])
    index = read_object(tree, INDEX)
    found = architecture_of(index.get("_class_name"), f"_class_name in {INDEX}")
    if found != layout.architecture:
        raise ModelInvalid(
            f"{place(tree)} is a {found}; the base of a checkpoint of {layout.name} must be a {layout.architecture}"
        )
    left_out = {_UNUSED, *layout.left_out(tensors)}
    left_out |= {name.replace("text_encoder", "tokenizer") for name in left_out}
    paths, absent = {INDEX}, []
    for component in components(index):
        if component.name in left_out:
            continue
        if component.stem and not layout.holds(component.name, tensors):
            raise ModelInvalid(
                f"{place(tree)} has a {component.name}, which a checkpoint of {layout.name} has no weights for"
            )
        if lacking := component.absent(tree):
            absent.append(lacking)
        paths |= companions(tree, component)
    if absent:
        raise missing(tree, absent)
    if layout.holds("unet", tensors):
        _check_unet(tree, tensors)
    return manifest_of(tree, tuple(tree.files[path] for path in sorted(paths)))


def _check_unet(tree: FileTree, tensors: Tensors) -> None:
    """Checks that the base's UNet has the checkpoint's sizes. Other mismatches are found when the model is loaded."""
    path = "unet/config.json"
    config = read_object(tree, path)
    outputs, inputs = tensors[_INPUTS].shape[:2]
    widths = config.get("block_out_channels")
    sizes = {
        "in_channels": (config.get("in_channels"), inputs),
        "block_out_channels": (widths[0] if isinstance(widths, list) and widths else None, outputs),
    }
    keys = next((tensor for name, tensor in tensors.items() if name.endswith(_KEYS)), None)
    if keys is not None and len(keys.shape) > 1:
        sizes["cross_attention_dim"] = (config.get("cross_attention_dim"), keys.shape[1])
    for name, (configured, real) in sizes.items():
        if type(configured) is int and configured != real:
            raise ModelInvalid(
                f"{place(tree)} is not a base of this checkpoint: {name} in {path} is {configured}, here it is {real}"
            )
