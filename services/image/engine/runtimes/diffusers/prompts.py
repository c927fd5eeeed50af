"""Counts the tokens of prompts, thread-safe, with copies of the pipeline's tokenizers."""

from __future__ import annotations

import copy
import inspect
import threading
from dataclasses import dataclass
from typing import Any

from services.image.engine.runtime import PromptLength
from services.worker.messages import EngineError

_NAMES = (("tokenizer", "text_encoder"), ("tokenizer_2", "text_encoder_2"), ("tokenizer_3", "text_encoder_3"))


@dataclass(frozen=True, slots=True)
class _Encoder:
    tokenizer: Any
    limit: int  # tokens, without special tokens


class Prompts:
    """All text encoders of a pipeline."""

    def __init__(self, pipeline: Any) -> None:
        """Raises EngineError (UNSUPPORTED) if the pipeline has no text encoder."""
        self._lock = threading.Lock()
        self._encoders = []
        for name, model in _NAMES:
            tokenizer, encoder = getattr(pipeline, name, None), getattr(pipeline, model, None)
            if tokenizer is not None and encoder is not None:
                # A copy, because the pipeline sets truncation and padding on its own tokenizer while it runs.
                limit = _limit(pipeline, tokenizer, encoder) - tokenizer.num_special_tokens_to_add()
                self._encoders.append(_Encoder(copy.deepcopy(tokenizer), limit))
        if not self._encoders:
            raise EngineError("UNSUPPORTED", f"{type(pipeline).__name__} has no text encoder")

    @property
    def limit(self) -> int:
        """Most tokens of a prompt, of the encoder with the lowest limit."""
        return min(encoder.limit for encoder in self._encoders)

    def fit(self, prompt: str) -> PromptLength:
        """Counts a prompt's tokens, for the encoder with the least room left."""
        with self._lock:
            fits = [PromptLength(self._count(encoder.tokenizer, prompt), encoder.limit) for encoder in self._encoders]
        return min(fits, key=lambda fit: fit.limit - fit.tokens)

    def _count(self, tokenizer: Any, prompt: str) -> int:
        return len(tokenizer(prompt, add_special_tokens=False, truncation=False, verbose=False)["input_ids"])


def _limit(pipeline: Any, tokenizer: Any, encoder: Any) -> int:
    """Returns the encoder's limit, including special tokens; diffusers would truncate longer prompts."""
    limits = [tokenizer.model_max_length]
    positions = encoder.config.to_dict().get("max_position_embeddings")
    if isinstance(positions, int):
        limits.append(positions)
    chosen = inspect.signature(pipeline.__call__).parameters.get("max_sequence_length")
    # CLIP's length is fixed; for other encoders the pipeline chooses the length.
    if chosen is not None and isinstance(chosen.default, int) and not encoder.config.model_type.startswith("clip"):
        limits.append(chosen.default)
    return int(min(limits))
