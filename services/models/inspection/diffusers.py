"""A pipeline of diffusers: `model_index.json`, and a folder for every component that it names."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from services.models.inspection.architecture import architecture_of
from services.models.inspection.document import read_object
from services.models.inspection.finding import Finding
from services.models.inspection.listing import listed, missing, there
from services.models.inspection.weights import Weights, check_weights, find_weights
from services.models.tree import FileTree
from services.rpc.errors import ModelInvalid

INDEX = "model_index.json"
MAX_COMPONENTS = 64
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PROCESSORS = ("FeatureExtractor", "ImageProcessor", "Processor")
# What a component must have, by what it is: one of these sets of files.
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
class _Component:
    name: str
    library: str
    kind: str  # the class

    @property
    def folder(self) -> str:
        return f"{self.name}/"

    @property
    def needs(self) -> tuple[tuple[str, ...], ...]:
        """The sets of files of which it needs one whole."""
        if self.kind.endswith("Scheduler"):
            return _SCHEDULER
        if "Tokenizer" in self.kind:
            return _TOKENIZER
        return _PROCESSOR if self.kind.endswith(_PROCESSORS) else _MODEL

    @property
    def stem(self) -> str:
        """What its library calls the weights; empty: it has none."""
        if self.needs is not _MODEL:
            return ""
        return "diffusion_pytorch_model" if self.library == "diffusers" else "model"


@dataclass(slots=True)
class _Parts:
    """What was found of all components, and what was not."""

    paths: set[str] = field(default_factory=set)
    weights: list[Weights] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)  # weights that are no safetensors


def inspect_diffusers(tree: FileTree) -> Finding:
    """Checks a pipeline and all its components without reading their weights.

    Raises:
        ModelInvalid: files are missing, ambiguous or damaged; names them.
    """
    if not there(tree, INDEX):
        raise missing(tree, [INDEX])
    index = read_object(tree, INDEX)
    architecture = architecture_of(index.get("_class_name"), f"_class_name in {INDEX}")
    parts = _Parts()
    for component in _components(index):
        _collect(tree, component, parts)
    if parts.other:
        raise ModelInvalid(f"{listed(parts.other)}: only safetensors are read, and there are none beside it")
    if parts.absent:
        raise missing(tree, parts.absent)
    if not parts.weights:
        raise ModelInvalid(f"{INDEX} names no component that has weights")
    check_weights(tree, parts.weights)
    return Finding(
        format="diffusers",
        modality="image",
        architecture=architecture,
        capabilities=frozenset({"image"}),
        context_tokens=0,
        files=tuple(tree.files[path] for path in sorted({INDEX, *parts.paths})),
        primary="",
    )


def _components(index: dict[str, object]) -> Iterator[_Component]:
    """Entries are `"name": ["library", "Class"]`; with null in it the pipeline goes without. Others are options."""
    names = [
        name
        for name, value in index.items()
        if isinstance(value, list) and None not in value and any(isinstance(each, str) for each in value)
    ]
    if len(names) > MAX_COMPONENTS:
        raise ModelInvalid(f"{INDEX} names {len(names)} components; {MAX_COMPONENTS} are allowed")
    for name in names:
        match index[name]:
            case [str(library), str(kind)] if library and kind and _FOLDER.fullmatch(name):
                yield _Component(name, library, kind)
            case value:
                raise ModelInvalid(f"{INDEX} names {reprlib.repr(name)}: {reprlib.repr(value)}, which is no component")


def _collect(tree: FileTree, component: _Component, parts: _Parts) -> None:
    folder = component.folder
    if not any(all(there(tree, folder + name) for name in names) for names in component.needs):
        parts.absent.append(" or ".join(" + ".join(folder + name for name in names) for names in component.needs))
    elif component.stem:
        read_object(tree, f"{folder}config.json")
    parts.paths |= {folder + name for name in _COMPANIONS} & tree.files.keys()
    if not component.stem:
        return
    weights = find_weights(tree, folder, stem=component.stem, variants=True)
    if weights:
        parts.weights.append(weights)
        parts.paths.update(weights.files)
        return
    others = [path for path in tree.files if path.startswith(folder) and path.endswith((".bin", ".ckpt", ".pt"))]
    if others:
        parts.other += others
    else:
        parts.absent.append(f"{folder}{component.stem}.safetensors")
