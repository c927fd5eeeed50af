"""Counts the tokens of prompts with copies of the pipeline's tokenizers, so that any thread may."""

from __future__ import annotations

import copy
import inspect
import threading
from dataclasses import dataclass
from typing import Any

from services.image.engine.runtime import Fit
from services.worker.messages import EngineError

_NAMES = (("tokenizer", "text_encoder"), ("tokenizer_2", "text_encoder_2"), ("tokenizer_3", "text_encoder_3"))


@dataclass(frozen=True, slots=True)
class _Encoder:
    tokenizer: Any
    limit: int  # tokens, its own marks left out


class Prompts:
    """All text encoders of a pipeline."""

    def __init__(self, pipeline: Any) -> None:
        """Raises EngineError (UNSUPPORTED) for a pipeline that has none."""
        self._lock = threading.Lock()
        self._encoders = []
        for name, model in _NAMES:
            tokenizer, encoder = getattr(pipeline, name, None), getattr(pipeline, model, None)
            if tokenizer is not None and encoder is not None:
                # The pipeline's own is told to cut and pad while it runs.
                limit = _limit(pipeline, tokenizer, encoder) - tokenizer.num_special_tokens_to_add()
                self._encoders.append(_Encoder(copy.deepcopy(tokenizer), limit))
        if not self._encoders:
            raise EngineError("UNSUPPORTED", f"{type(pipeline).__name__} has no text encoder")

    @property
    def limit(self) -> int:
        """Most tokens of a prompt, of the encoder that takes fewest."""
        return min(encoder.limit for encoder in self._encoders)

    def fit(self, prompt: str) -> Fit:
        """How much of an encoder a prompt fills, of the one with the least room left."""
        with self._lock:
            fits = [Fit(self._count(encoder.tokenizer, prompt), encoder.limit) for encoder in self._encoders]
        return min(fits, key=lambda fit: fit.limit - fit.tokens)

    def _count(self, tokenizer: Any, prompt: str) -> int:
        return len(tokenizer(prompt, add_special_tokens=False, truncation=False, verbose=False)["input_ids"])


def _limit(pipeline: Any, tokenizer: Any, encoder: Any) -> int:
    """Tokens that the pipeline gives to an encoder, its marks included: what is over, diffusers would cut off."""
    limits = [tokenizer.model_max_length]
    positions = encoder.config.to_dict().get("max_position_embeddings")
    if isinstance(positions, int):
        limits.append(positions)
    chosen = inspect.signature(pipeline.__call__).parameters.get("max_sequence_length")
    # CLIP has a length built in; to other encoders the pipeline gives as much as it chooses.
    if chosen is not None and isinstance(chosen.default, int) and not encoder.config.model_type.startswith("clip"):
        limits.append(chosen.default)
    return int(min(limits))
