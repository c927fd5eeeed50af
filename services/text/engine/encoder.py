"""The interface between the embedding loop and a runtime, which computes vectors of token sequences.

One thread calls all methods except `tokenize`, which another thread may call during an `encode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.text.engine.messages import EncoderReady

Tokens = NDArray[np.int32]  # [tokens]
Vectors = NDArray[np.float32]  # [inputs, dimensions]


class Encoder(Protocol):
    """A loaded embedding model."""

    ready: EncoderReady
    batch_inputs: int  # maximum inputs of one `encode`
    normalised: bool  # whether the loop normalises its vectors to length one

    def tokenize(self, text: str) -> Tokens:
        """Returns the token ids of an input, with the model's special tokens around it."""

    def encode(self, inputs: Sequence[Tokens]) -> Vectors:
        """Returns the pooled vectors of the inputs, in order, not normalised. No input exceeds the context."""
