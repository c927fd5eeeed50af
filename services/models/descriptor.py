"""The description of a model, from its registration and its own metadata only."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args

from services.models.manifest import Manifest

Modality = Literal["text", "audio", "image"]
Format = Literal["gguf", "safetensors", "whisper", "diffusers"]
MODALITIES: tuple[Modality, ...] = get_args(Modality)
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Everything that decides which runtime can run a model."""

    id: str
    modality: Modality
    format: Format
    architecture: str  # from the model's own metadata
    capabilities: frozenset[str]
    size: int  # bytes of all files
    context_tokens: int  # trained context length; 0: unknown
    quantization: str = ""  # of safetensors; empty: none, or inherent in the format (GGUF)
    unpacked_size: int = 0  # bytes after dequantising, if the weights must be dequantised to be used; 0: same as size


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraFile:
    """A local LoRA file of a model."""

    path: Path
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Per-model engine settings of a text model. Zero or empty: the service's own setting."""

    tensor_parallel: int = 0  # GPUs of one machine that share every layer
    pipeline_parallel: int = 0  # stages (machines or groups of GPUs) that hold some of the layers each
    context_tokens: int = 0  # most tokens of prompt and answer together
    max_sequences: int = 0  # requests that decode at the same time
    kv_tokens: int = 0  # size of the key-value cache that all requests share
    dtype: str = ""  # precision of safetensors: auto, bfloat16, float16 or float32
    speculation: str = ""  # how the next tokens are guessed: off or ngram


AS_THE_SERVICE_DOES = EngineSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescriptor(ModelFacts):
    """A model whose files are complete on this machine."""

    generation: int  # counts the model's sources; a loaded older generation is replaced
    files: tuple[Path, ...]
    primary: Path  # the file or folder that a runtime opens
    base: Path | None = None  # folder with the configuration and tokenizers of a single-file checkpoint
    loras: tuple[LoraFile, ...] = ()
    engine: EngineSettings = AS_THE_SERVICE_DOES

    @property
    def projector(self) -> Path | None:
        """The file that encodes pictures for a GGUF model; None if it takes none."""
        return next((path for path in self.files if is_projector(path.name)), None) if self.format == "gguf" else None


def is_projector(path: str) -> bool:
    """Returns True if a file's name is that of a projector (mmproj), which encodes pictures for a GGUF model."""
    name = path.rpartition("/")[2].lower()
    return "mmproj" in name and name.endswith(".gguf")


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
    """Builds the descriptor of a model whose files are in `folder`, as listed in the manifest."""
    return ModelDescriptor(
        **{field.name: getattr(facts, field.name) for field in fields(ModelFacts)},
        generation=generation,
        files=tuple(folder / file.path for file in manifest.files),
        primary=folder / manifest.primary if manifest.primary else folder,
        base=base,
        loras=loras,
        engine=engine,
    )
