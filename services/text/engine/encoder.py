"""What a runtime must do so that the embedding loop can drive it: make vectors of token sequences, and little more.

All methods are called from one thread but `tokenize`, which another one calls beside a running `encode`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.text.engine.messages import EncoderReady, EngineOptions

Tokens = NDArray[np.int32]  # [tokens]
Vectors = NDArray[np.float32]  # [inputs, dimensions]


class Encoder(Protocol):
    """A loaded embedding model."""

    ready: EncoderReady
    batch_inputs: int  # the most inputs of one `encode`
    normalised: bool  # whether its vectors are brought to length one; the loop does it

    def tokenize(self, text: str) -> Tokens:
        """Token ids of an input, with the special tokens that the model wants around it."""

    def encode(self, inputs: Sequence[Tokens]) -> Vectors:
        """The pooled vectors of some inputs, in their order, not yet normalised. None has too many tokens."""


EncoderLoader = Callable[[EngineOptions, Callable[[float], None]], Encoder]
