"""Loads a pipeline from a single-file checkpoint and a folder with its configuration and tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from services.image.engine.runtimes.diffusers.index import PipelineIndex
from services.worker.messages import EngineError

# Optional components, each with a tensor that marks its presence in a file: Stable Diffusion 3 was published with and
# without its largest text encoder.
_OPTIONAL = {"text_encoder_3": "text_encoders.t5xxl.transformer.shared.weight"}
_TOKENIZERS = {"text_encoder_3": "tokenizer_3"}


def load_single_file(
    kind: Any, checkpoint: Path, base: PipelineIndex, dtype: torch.dtype, options: dict[str, Any]
) -> Any:
    """Loads a pipeline of the class `kind`. Downloads nothing.

    Raises:
        EngineError: MODEL_INVALID if the checkpoint lacks weights of the base's components.
        Also diffusers' errors for weights that do not fit.
    """
    try:
        return kind.from_single_file(
            str(checkpoint),
            config=str(base.folder),
            dtype=dtype,
            local_files_only=True,
            **options,
            **dict.fromkeys(_left_out(checkpoint, base)),
        )
    except NotImplementedError as error:  # diffusers leaves missing weights on the meta device, then fails
        raise EngineError("MODEL_INVALID", f"{checkpoint} lacks weights that the model of {base.folder} has") from error


def _left_out(checkpoint: Path, base: PipelineIndex) -> list[str]:
    """Returns the optional components of the base that the file lacks, with their tokenizers."""
    with safe_open(checkpoint, "pt") as file:
        names = set(file.keys())
    absent = [name for name, mark in _OPTIONAL.items() if name in base.components and mark not in names]
    return [*absent, *(_TOKENIZERS[name] for name in absent)]
