"""What a model is, told only from its registration and its own metadata."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.models.gguf import GgufError, read_header
from services.rpc.errors import ModelInvalid

Modality = Literal["text", "audio", "image"]
Format = Literal["gguf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescriptor:
    """A registered model: everything that decides who can run it."""

    id: str
    modality: Modality
    format: Format
    architecture: str  # from the model's own metadata
    capabilities: frozenset[str]
    files: tuple[Path, ...]
    primary: Path  # the file that a runtime opens
    size: int  # bytes of all files
    context_tokens: int  # what the model was trained for; 0: it does not say


def describe_gguf(model_id: str, path: Path) -> ModelDescriptor:
    """Describes a GGUF file.

    Raises:
        ModelInvalid: the file is missing, is no GGUF file, or does not name its architecture.
    """
    try:
        header = read_header(path)
    except GgufError as error:
        raise ModelInvalid(str(error)) from error
    if not header.architecture:
        raise ModelInvalid(f"{path} does not name its architecture (general.architecture)")
    return ModelDescriptor(
        id=model_id,
        modality="text",
        format="gguf",
        architecture=header.architecture,
        capabilities=frozenset({"chat"}),
        files=(path,),
        primary=path,
        size=header.size,
        context_tokens=header.context_length,
    )
