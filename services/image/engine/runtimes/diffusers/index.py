"""Reads `model_index.json` of a pipeline's folder, and refuses entries that would run the model's own code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
from diffusers import pipelines

from services.worker.messages import EngineError, error_line

NAME = "model_index.json"
_MOST_BYTES = 1024 * 1024
_LIBRARIES = ("diffusers", "transformers")
_STEMS = ("diffusion_pytorch_model", "model")  # of weight files
_VARIANT = "fp16"
_ADAPTER = "adapter_config.json"  # makes transformers load an adapter on top of the weights


@dataclass(frozen=True, slots=True)
class PipelineIndex:
    """The contents of a pipeline's folder."""

    folder: Path
    pipeline: str  # class name
    components: tuple[str, ...]  # names

    @property
    def variant(self) -> str | None:
        """`fp16` if a component has its weights only in half precision, else None."""
        return _VARIANT if any(map(self._only_half, self.components)) else None

    def _only_half(self, component: str) -> bool:
        folder = self.folder / component

        def there(variant: str) -> bool:
            names = [f"{stem}{variant}.safetensors" for stem in _STEMS]
            names += [f"{stem}.safetensors.index{variant}.json" for stem in _STEMS]
            return any((folder / name).is_file() for name in names)

        return not there("") and there(f".{_VARIANT}")


def read_index(folder: Path) -> PipelineIndex:
    """Reads and checks a folder's model_index.json.

    Raises:
        EngineError: MODEL_INVALID if it cannot be read, UNSUPPORTED if it names classes that diffusers does not have.
    """
    raw = _read(folder / NAME)
    name = raw.get("_class_name")
    kind = getattr(diffusers, name, None) if isinstance(name, str) and name.isidentifier() else None
    if not (isinstance(kind, type) and issubclass(kind, diffusers.DiffusionPipeline)):
        raise EngineError("UNSUPPORTED", f"diffusers {diffusers.__version__} has no pipeline {str(name)[:100]!r}")
    components = []
    for component, value in raw.items():
        match value:
            case [str(library), str(part)]:
                _check_component(component, library, part)
                if (folder / component / _ADAPTER).exists():
                    what = "would change the model unasked: move it away, and register the model with its LoRAs"
                    raise EngineError("MODEL_INVALID", f"{folder / component / _ADAPTER} {what}")
                components.append(component)
            case _:
                continue  # contains null: an absent component; anything else is an option
    return PipelineIndex(folder, str(name), tuple(components))


def _check_component(name: str, library: str, part: str) -> None:
    """Allows only classes of the two libraries, because diffusers would import any module that a file names."""
    own = library in _LIBRARIES or isinstance(getattr(pipelines, library, None), type(pipelines))
    if not (own and library.isidentifier() and part.isidentifier()):
        what = f"{library[:100]}.{part[:100]}"
        raise EngineError(
            "UNSUPPORTED", f"{NAME} names {what} as {name[:100]}: only classes of diffusers and transformers are run"
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise EngineError("MODEL_INVALID", f"{path} is larger than {_MOST_BYTES} bytes")
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError("MODEL_INVALID", f"{path}: {error_line(error)}") from error
    if not isinstance(document, dict):
        raise EngineError("MODEL_INVALID", f"{path} is not a JSON object")
    return document
