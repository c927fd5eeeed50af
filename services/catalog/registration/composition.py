"""The parts of an image model in addition to its own files: a base for a single-file checkpoint, and LoRAs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.errors import AllmError, InvalidRequest, ModelInvalid, ModelNotReady
from services.models.descriptor import Format
from services.models.desired import ImageDefaults, ModelPart
from services.models.formats.diffusers import inspect_base
from services.models.formats.finding import Finding
from services.models.formats.lora import check_fit, inspect_lora
from services.models.formats.original_layout import layout_of
from services.models.hub.repository import HubTree
from services.models.hub.source import FileTree, HubSource, LocalTree, Source, parse_source

FORMAT: Format = "diffusers"  # the only one that has parts
MAX_LORAS = 16
MOST_SCALE = 10.0
MOST_STEPS = 1000
MOST_GUIDANCE = 100.0
_SINGLE = ""  # the key under which an inspection lists the tensors of a single-file checkpoint


def open_source(source: Source, roots: Sequence[Path]) -> tuple[FileTree, str]:
    """Returns a source's file tree, and the file that it names (empty: none). Blocks. Raises what the trees raise."""
    if isinstance(source, HubSource):
        return HubTree.open_repository(source), source.file
    path = source.path
    if path.is_dir():
        return LocalTree(path, roots), ""
    if not path.is_file():
        raise ModelInvalid(f"{path}: there is no such file or folder", param="source")
    # The neighbouring files too: a split model has more than one file.
    return LocalTree(path.parent, roots, depth=0, wanted=path.name), path.name


@dataclass(frozen=True, slots=True)
class LoraChoice:
    """A LoRA as an operator requests it."""

    source: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Composition:
    """The parts that an operator requests for a model. An empty `base` means the usual one."""

    base: str = ""
    loras: tuple[LoraChoice, ...] = ()
    kept: bool = False  # the base is kept from earlier; a pipeline's folder then ignores it

    @classmethod
    def of(cls, parts: Sequence[ModelPart]) -> Composition:
        """Returns the composition that was requested for a registered model."""
        base = next((part.source for part in parts if part.kind == "base"), "")
        return cls(base, tuple(LoraChoice(part.source, part.scale) for part in parts if part.kind == "lora"))

    def check(self, format: Format, roots: Sequence[Path]) -> None:
        """Checks the composition against the format. Raises InvalidRequest with param `base` or `loras`."""
        for name, there in (("base", self.base), ("loras", self.loras)):
            if there and format != FORMAT:
                raise InvalidRequest(f"'{name}' is for models of the format {FORMAT}, not {format}", param=name)
        if self.base:
            found = parse_source(self.base, roots, "base")
            if isinstance(found, HubSource) and found.file:
                raise InvalidRequest(f"'base' must be a pipeline; {found.file[:200]} is a single file", param="base")
        if len(self.loras) > MAX_LORAS:
            raise InvalidRequest(f"at most {MAX_LORAS} LoRAs may be given, not {len(self.loras)}", param="loras")
        seen: set[str] = set()
        for lora in self.loras:
            parse_source(lora.source, roots, "loras")
            if not (math.isfinite(lora.scale) and 0 < abs(lora.scale) <= MOST_SCALE):
                allowed = f"from -{MOST_SCALE:g} to {MOST_SCALE:g} and not 0"
                raise InvalidRequest(f"the scale of a LoRA must be {allowed}, not {lora.scale:g}", param="loras")
            if lora.source in seen:
                raise InvalidRequest(f"the LoRA {lora.source!r} appears twice", param="loras")
            seen.add(lora.source)


def check_defaults(defaults: ImageDefaults, format: Format) -> None:
    """Checks a model's image defaults. Raises InvalidRequest with param `image_defaults`."""
    if defaults == ImageDefaults():
        return
    param = "image_defaults"
    if format != FORMAT:
        raise InvalidRequest(f"'{param}' is for image models ({FORMAT}), not {format}", param=param)
    if defaults.steps is not None and not 1 <= defaults.steps <= MOST_STEPS:
        raise InvalidRequest(f"'{param}.steps' must be from 1 to {MOST_STEPS}, not {defaults.steps}", param=param)
    if defaults.guidance is not None and not 0 <= defaults.guidance <= MOST_GUIDANCE:  # also catches NaN
        limits = f"from 0 to {MOST_GUIDANCE:g}"
        raise InvalidRequest(f"'{param}.guidance' must be {limits}, not {defaults.guidance:g}", param=param)


def compose(finding: Finding, wanted: Composition, roots: Sequence[Path]) -> tuple[ModelPart, ...]:
    """Lists, checks and pins a model's parts. Blocks.

    Raises:
        InvalidRequest: a base is named for a model that brings its own configuration.
        ModelInvalid: files are missing or damaged, or do not fit the model; `param` names the part at fault.
        ModelNotReady, Overloaded: the hub cannot be reached now.
    """
    parts = []
    if _SINGLE in finding.tensors:
        parts.append(_base(finding, wanted.base, roots))
    elif wanted.base and not wanted.kept:
        what = "'base' is only for single-file checkpoints: a pipeline's folder has its own configuration"
        raise InvalidRequest(what, param="base")
    parts += [_lora(finding, choice, roots) for choice in wanted.loras]
    return tuple(parts)


def _base(finding: Finding, source: str, roots: Sequence[Path]) -> ModelPart:
    tensors = finding.tensors[_SINGLE]
    layout = layout_of(tensors, finding.primary)
    usual = f"hf://{layout.base}"
    what = f"{layout.name} takes its configuration and tokenizers from {usual} unless `base` names another"
    try:
        with _errors_at("base"):
            tree, file = open_source(parse_source(source or usual, roots, "base"), roots)
            manifest = inspect_base(tree, layout, tensors) if not file else None
    except ModelInvalid as error:
        if source:
            raise
        raise ModelInvalid(f"{what}: {error.message}", param="base") from error
    except ModelNotReady as error:
        if source:
            raise
        raise ModelNotReady(f"{what}: {error.message}") from error
    if manifest is None:
        raise InvalidRequest(f"'base' must be a pipeline's folder; {source[:200]} is a single file", param="base")
    return ModelPart(kind="base", source=source, manifest=manifest)


def _lora(finding: Finding, choice: LoraChoice, roots: Sequence[Path]) -> ModelPart:
    with _errors_at("loras"):
        tree, file = open_source(parse_source(choice.source, roots, "loras"), roots)
        found = inspect_lora(tree, file)
        check_fit(found, finding.tensors)
    return ModelPart(kind="lora", source=choice.source, manifest=found.manifest, scale=choice.scale)


@contextmanager
def _errors_at(param: str) -> Iterator[None]:
    """Attributes any error in the block to that parameter."""
    try:
        yield
    except AllmError as error:
        error.param = param
        raise
