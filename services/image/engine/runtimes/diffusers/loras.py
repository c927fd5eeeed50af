"""Fuses LoRAs into a pipeline's weights when it is loaded, so that they cost nothing at inference."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer

from services.image.engine.messages import Lora
from services.worker.messages import EngineError


def add_loras(pipeline: Any, loras: Sequence[Lora]) -> None:
    """Fuses all LoRAs, each with its scale.

    Raises:
        EngineError: UNSUPPORTED if the pipeline takes no LoRAs; MODEL_INVALID if a file was made for another model.
        Also the errors of diffusers and peft for weights that do not fit.
    """
    if not loras:
        return
    if not hasattr(pipeline, "load_lora_weights"):
        raise EngineError("UNSUPPORTED", f"{type(pipeline).__name__} takes no LoRAs")
    names = [f"lora{number}" for number in range(len(loras))]
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # about several adapters, which is intended
        for name, lora in zip(names, loras, strict=True):
            _load(pipeline, name, Path(lora.path))
        pipeline.set_adapters(names, adapter_weights=[lora.scale for lora in loras])
        pipeline.fuse_lora(components=_changed(pipeline), adapter_names=names, safe_fusing=True)
    pipeline.unload_lora_weights()


def _load(pipeline: Any, name: str, path: Path) -> None:
    folder, file = str(path.parent), path.name
    options = {"weight_name": file, "local_files_only": True, "use_safetensors": True}
    found = pipeline.lora_state_dict(folder, **options)
    weights = found[0] if isinstance(found, tuple) else found
    wanted = sum(key.endswith((".lora_A.weight", "down.weight")) for key in weights)
    pipeline.load_lora_weights(folder, adapter_name=name, **options)
    # diffusers skips matrices that it cannot match, and reports that only in its log.
    taken = sum(_layers(pipeline, name))
    if taken < max(1, wanted):
        kind = type(pipeline).__name__
        message = f"{path} was made for another model: {taken} of its {wanted} matrices are in this {kind}"
        raise EngineError("MODEL_INVALID", message)


def _layers(pipeline: Any, name: str) -> list[int]:
    """Counts the matrices that a LoRA changes, per component."""
    return [
        sum(isinstance(module, BaseTunerLayer) and name in getattr(module, "lora_A", ()) for module in part.modules())
        for part in pipeline.components.values()
        if isinstance(part, torch.nn.Module)
    ]


def _changed(pipeline: Any) -> list[str]:
    """Returns the components that LoRAs change."""
    return [
        component
        for component, part in pipeline.components.items()
        if isinstance(part, torch.nn.Module) and any(isinstance(module, BaseTunerLayer) for module in part.modules())
    ]
