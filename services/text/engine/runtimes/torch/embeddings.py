"""The embeddings of a picture's part, as a step takes them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class Embeddings:
    """The embeddings of successive tokens of a picture's part."""

    rows: Tensor  # [tokens, width]
    places: Tensor | None = None  # int64 [3, tokens]: rotary positions from the part's start; None: as in text
    layers: Tensor | None = None  # [layers, tokens, width], to add to the outputs of the first layers
    first: int = 0  # number of the part's tokens before these

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, tokens: slice) -> Embeddings:
        """Returns the embeddings of some of the tokens."""
        return Embeddings(
            self.rows[tokens],
            None if self.places is None else self.places[:, tokens],
            None if self.layers is None else self.layers[:, tokens],
            self.first + (tokens.start or 0),
        )
