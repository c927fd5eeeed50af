"""Lists the models in a repository that the hub's search found: source, size and properties of each.

It reads the list of files only, and the indexes of sharded weights: registration checks the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.catalog.registration.hub_choice import id_of, quantization_of, usual_file, with_file
from services.errors import AllmError, ModelInvalid
from services.models.descriptor import Format, Modality, ModelFacts
from services.models.formats.diffusers import INDEX as PIPELINE
from services.models.formats.gguf import splits_in
from services.models.formats.safetensors_shards import find_weights
from services.models.formats.whisper import ARCHITECTURE, CHECKPOINT, CONVERTED, CTRANSLATE2, layouts_in
from services.models.hub.repository import HubTree
from services.models.hub.search import FoundRepository
from services.models.hub.source import FileTree, HubSource
from services.models.runtimes import LLAMA_CPP_ENCODERS

MAX_CHOICES = 40  # models of one repository
_EMBEDS = ("feature-extraction", "sentence-similarity")
_RERANKS = ("text-ranking",)
_SEES = ("image-text-to-text",)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubChoice:
    """A model of a repository that can be registered."""

    source: str  # `hf://org/name[#file]`
    id: str  # a proposal
    label: str  # quantization or file; empty: the repository is one model
    facts: ModelFacts  # as far as the hub's list tells them; an unknown architecture is empty
    usual: bool  # whether it is the one that is taken if nobody chooses


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFinding:
    """A repository and its models, smallest first; none if `reason` says why."""

    repository: FoundRepository
    choices: tuple[HubChoice, ...] = ()
    reason: str = ""


def look_into(found: FoundRepository, format: Format) -> HubFinding:
    """Lists the models of a format in a repository. Blocks. An error of the hub is the finding's reason."""
    source = f"hf://{found.name}"
    try:
        tree = HubTree.open_repository(HubSource(found.name, "", ""))
        sizes = model_sizes(tree, format)
        if format == "whisper" and found.architecture not in ("", ARCHITECTURE):  # other speech models look the same
            raise ModelInvalid(f"it is a model of {found.architecture}, not Whisper")
        usual = usual_file(sizes)
    except AllmError as error:
        return HubFinding(repository=found, reason=error.message)
    choices = [
        HubChoice(
            source=with_file(source, file),
            id=_id(source, file),
            label=quantization_of(file) or file,
            facts=_facts(found, format, tree, file, size),
            usual=file == usual,
        )
        for file, size in sorted(sizes.items(), key=lambda each: each[1])
    ]
    kept = [*[each for each in choices if each.usual], *[each for each in choices if not each.usual]][:MAX_CHOICES]
    return HubFinding(repository=found, choices=tuple(sorted(kept, key=lambda each: each.facts.size)))


def model_sizes(tree: FileTree, format: Format) -> dict[str, int]:
    """Returns the bytes of the weights of every model of a format, by its file; empty file: the whole repository.

    Raises:
        ModelInvalid: there is none; the message says why.
    """
    sizes: dict[str, int] = {}
    if format == "gguf":
        for split in splits_in(tree):
            if all(path in tree.files for path in split):
                sizes[split[0]] = _sum(tree, split)
    elif format == "diffusers":
        folders = sorted({path.partition("/")[0] + "/" for path in tree.files if path.count("/") == 1})
        stems = ("diffusion_pytorch_model", "model")
        found = [find_weights(tree, folder, stem=stem, variants=True) for folder in folders for stem in stems]
        if PIPELINE in tree.files and (files := [path for one in found if one for path in one.files]):
            sizes[""] = _sum(tree, files)
    else:
        layouts = layouts_in(tree)
        if "transformers" in layouts and (weights := find_weights(tree)):
            sizes[""] = _sum(tree, weights.files)
        elif format == "whisper" and CTRANSLATE2 in layouts.get("CTranslate2", []):
            sizes[""] = _sum(tree, [CTRANSLATE2])
        elif format == "whisper":
            sizes |= {path: _sum(tree, [path]) for path in layouts.get("OpenAI", []) if path.endswith(CHECKPOINT)}
    if not sizes:
        raise ModelInvalid(f"it has no complete model in {format}")
    return sizes


def _sum(tree: FileTree, paths: list[str] | tuple[str, ...]) -> int:
    return sum(tree.files[path].size for path in paths if path in tree.files)


def _id(source: str, file: str) -> str:
    """Proposes an id that tells the models of a repository apart."""
    label = quantization_of(file).lower()
    return f"{id_of(source)}-{label}" if label else id_of(source)


def _facts(found: FoundRepository, format: Format, tree: FileTree, file: str, size: int) -> ModelFacts:
    modality: Modality = {"whisper": "audio", "diffusers": "image"}.get(format, "text")  # type: ignore[assignment]
    architecture, capabilities = found.architecture, {"chat"}
    if modality == "audio":
        converted = CTRANSLATE2 in tree.files and not file and "transformers" not in layouts_in(tree)
        architecture = CONVERTED if converted else ARCHITECTURE
        capabilities = {"transcription", "translation"}
    elif modality == "image":
        capabilities = {"image"}
    elif found.task in _RERANKS:
        capabilities = {"rerank"}
    elif found.task in _EMBEDS or architecture in LLAMA_CPP_ENCODERS:
        capabilities = {"embeddings"}
    elif found.task in _SEES and format == "safetensors":  # a GGUF file sees only with its projector
        capabilities = {"chat", "vision"}
    return ModelFacts(
        id=found.name,
        modality=modality,
        format=format,
        architecture=architecture,
        capabilities=frozenset(capabilities),
        size=size,
        context_tokens=0,
        quantization=found.quantization if format == "safetensors" else "",
    )
