"""What a model is, told only from its registration and its own metadata."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from services.models.manifest import Manifest

Modality = Literal["text", "audio", "image"]
Format = Literal["gguf", "safetensors", "whisper", "diffusers"]
MODALITIES: tuple[Modality, ...] = get_args(Modality)
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Everything that decides who can run a model."""

    id: str
    modality: Modality
    format: Format
    architecture: str  # from the model's own metadata
    capabilities: frozenset[str]
    size: int  # bytes of all files
    context_tokens: int  # what the model was trained for; 0: it does not say
    quantization: str = ""  # how safetensors are quantised; empty: not, or as its format always is (GGUF)
    unpacked_size: int = 0  # bytes of quantised weights where they must be dequantised to be used; 0: the same as size


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraFile:
    """A LoRA on this machine that belongs to a model."""

    path: Path
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How a text model is run, where it is to be run in another way than others. Zero, empty: as the service does."""

    tensor_parallel: int = 0  # GPUs of a machine that share every layer
    pipeline_parallel: int = 0  # machines, or groups of GPUs, of which each has some of the layers
    context_tokens: int = 0  # the most of prompt and answer together
    max_sequences: int = 0  # requests that decode at the same time
    kv_tokens: int = 0  # of the key-value cache that all requests share
    dtype: str = ""  # precision of safetensors: auto, bfloat16, float16 or float32


AS_THE_SERVICE_DOES = EngineSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescriptor(ModelFacts):
    """A model whose files are on this machine, whole."""

    generation: int  # counts the model's sources; a resident of an older one is replaced
    files: tuple[Path, ...]
    primary: Path  # the file or folder that a runtime opens
    base: Path | None = None  # the folder with what a checkpoint of one file does not hold
    loras: tuple[LoraFile, ...] = ()
    engine: EngineSettings = AS_THE_SERVICE_DOES


def describe(
    facts: ModelFacts,
    generation: int,
    manifest: Manifest,
    folder: Path,
    *,
    base: Path | None = None,
    loras: tuple[LoraFile, ...] = (),
    engine: EngineSettings = AS_THE_SERVICE_DOES,
) -> ModelDescriptor:
    """The descriptor of a model whose files lie in `folder` as the manifest has them."""
    return ModelDescriptor(
        id=facts.id,
        modality=facts.modality,
        format=facts.format,
        architecture=facts.architecture,
        capabilities=facts.capabilities,
        size=facts.size,
        context_tokens=facts.context_tokens,
        quantization=facts.quantization,
        unpacked_size=facts.unpacked_size,
        generation=generation,
        files=tuple(folder / file.path for file in manifest.files),
        primary=folder / manifest.primary if manifest.primary else folder,
        base=base,
        loras=loras,
        engine=engine,
    )
