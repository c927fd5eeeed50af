"""Runs a batch through the text decoder of openai-whisper's model: rows with prompts of different lengths, and several
beams of each, share it.

The package's own forward pass counts one position for all rows, stores the sound's keys and values once for every beam,
and copies its cache for every token. In this decoder each row has its own positions, all beams of a row share its
sound, and the cache is allocated once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Pair = tuple[Tensor, Tensor]  # keys and values
Listener = Callable[[int, Tensor, Tensor], None]


@dataclass(slots=True)
class Memory:
    """The decoder's view of the sound: for each layer, keys and values [windows, heads, 1500, size]."""

    layers: list[Pair]

    def rows(self, indexes: Tensor) -> Memory:
        """Returns the memory of some windows."""
        return Memory([(keys[indexes], values[indexes]) for keys, values in self.layers])


class Cache:
    """Keys and values of the tokens so far: for each layer, [rows, heads, columns, size], and each row's first column.

    All rows end at the same column; each begins where its own prompt does.
    """

    def __init__(self, layers: list[Pair], starts: Tensor) -> None:
        """`starts` [rows]: the first column of each row that holds a token."""
        self._layers = layers
        self.starts = starts
        self.ragged = bool(starts.any())
        self.columns = 0  # in use

    def store(self, layer: int, keys: Tensor, values: Tensor) -> Pair:
        """Stores the next columns of a layer. Returns all of its columns."""
        kept_keys, kept_values = self._layers[layer]
        end = self.columns + keys.shape[2]
        kept_keys[:, :, self.columns : end] = keys
        kept_values[:, :, self.columns : end] = values
        return kept_keys[:, :, :end], kept_values[:, :, :end]

    def select(self, rows: Tensor) -> None:
        """Continues with these rows; a row may occur several times."""
        same_count = len(rows) == len(self.starts)
        for layer, (keys, values) in enumerate(self._layers):
            if same_count:
                keys[:, :, : self.columns] = keys[rows, :, : self.columns]
                values[:, :, : self.columns] = values[rows, :, : self.columns]
            else:
                self._layers[layer] = (keys[rows], values[rows])
        self.starts = self.starts[rows]
        self.ragged = bool(self.starts.any())


class BatchDecoder:
    """The batched text decoder of a model."""

    def __init__(self, decoder: Any, heads: int) -> None:
        """`decoder` is openai-whisper's TextDecoder, with its weights."""
        self._decoder = decoder
        self._heads = heads
        self._embedding: Tensor = decoder.token_embedding.weight
        self._positions: Tensor = decoder.positional_embedding

    def memory(self, sound: Tensor) -> Memory:
        """Returns the memory of encoded windows [windows, 1500, state]."""
        return Memory(
            [
                (self._split(block.cross_attn.key(sound)), self._split(block.cross_attn.value(sound)))
                for block in self._decoder.blocks
            ]
        )

    def cache(self, starts: Tensor, columns: int) -> Cache:
        """Returns an empty cache of `columns` columns for rows that begin at `starts` [rows]."""
        state = self._embedding.shape[1]
        shape = (len(starts), self._heads, columns, state // self._heads)
        layers = [(self._embedding.new_zeros(shape), self._embedding.new_zeros(shape)) for _ in self._decoder.blocks]
        return Cache(layers, starts)

    def step(self, tokens: Tensor, cache: Cache, memory: Memory, listener: Listener | None = None) -> Tensor:
        """Computes the next `tokens` [rows, columns]. Returns their states [rows, columns, state].

        Each window of `memory` has the same number of rows, one after the other. The `listener` gets each layer's
        index, and the queries and keys of its attention to the sound.
        """
        columns = torch.arange(cache.columns, cache.columns + tokens.shape[1], device=tokens.device)
        positions = (columns - cache.starts[:, None]).clamp(min=0)
        x = self._embedding[tokens] + self._positions[positions]
        mask = _mask(cache.starts, columns) if cache.ragged or len(columns) > 1 else None
        for layer, block in enumerate(self._decoder.blocks):
            normal = block.attn_ln(x)
            keys, values = cache.store(
                layer, self._split(block.attn.key(normal)), self._split(block.attn.value(normal))
            )
            query = self._split(block.attn.query(normal))
            x = x + block.attn.out(_merge(scaled_dot_product_attention(query, keys, values, attn_mask=mask)))
            keys, values = memory.layers[layer]
            query = self._split(_by_window(block.cross_attn.query(block.cross_attn_ln(x)), len(keys)))
            if listener:
                listener(layer, query, keys)
            attended = _merge(scaled_dot_product_attention(query, keys, values))
            x = x + block.cross_attn.out(attended.reshape(x.shape))
            x = x + block.mlp(block.mlp_ln(x))
        cache.columns += len(columns)
        return x

    def logits(self, states: Tensor) -> Tensor:
        """Returns float32 logits [rows, vocabulary] of states [rows, state]."""
        normal: Tensor = self._decoder.ln(states)
        return (normal @ self._embedding.T).float()

    def attention(
        self, tokens: Tensor, memory: Memory, heads: Sequence[tuple[int, int]], frames: int
    ) -> tuple[Tensor, Tensor]:
        """Reads whole texts `tokens` [rows, columns] that begin at column 0, one row for each window.

        Returns their states [rows, columns, state], and the attention of each of the `heads` (layer, head) to the first
        `frames` positions of the sound: float32 [rows, heads, columns, frames], before the softmax.
        """
        cache = self.cache(torch.zeros(len(tokens), dtype=torch.long, device=tokens.device), tokens.shape[1])
        found: dict[tuple[int, int], Tensor] = {}

        def listen(layer: int, query: Tensor, keys: Tensor) -> None:
            for head in (head for chosen, head in heads if chosen == layer):
                scores = query[:, head].float() @ keys[:, head, :frames].float().transpose(1, 2)
                found[layer, head] = scores * query.shape[-1] ** -0.5

        states = self.step(tokens, cache, memory, listen)
        return states, torch.stack([found[pair] for pair in heads], dim=1)

    def _split(self, x: Tensor) -> Tensor:
        """[rows, columns, state] -> [rows, heads, columns, size]"""
        return x.reshape(*x.shape[:2], self._heads, -1).transpose(1, 2)


def _mask(starts: Tensor, columns: Tensor) -> Tensor:
    """Returns the mask of columns that each of the new `columns` attends to: [rows, 1, new columns, columns]."""
    keys = torch.arange(int(columns[-1]) + 1, device=columns.device)
    seen = (keys <= columns[:, None]) & (keys >= starts[:, None, None])
    # Columns before a row's start attend to themselves: attention to nothing would give NaN.
    return (seen | (keys == columns[:, None])).unsqueeze(1)


def _by_window(x: Tensor, windows: int) -> Tensor:
    """Returns the rows of each window as columns of one row, because they attend to the same sound."""
    return x.reshape(windows, -1, x.shape[-1])


def _merge(x: Tensor) -> Tensor:
    """[rows, heads, columns, size] -> [rows, columns, state]"""
    return x.transpose(1, 2).flatten(2)


def aligned_right(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns tokens [rows, columns] of rows that end at the same column, and the start of each [rows]."""
    longest = max(map(len, rows))
    starts = [longest - len(row) for row in rows]
    tokens = [[0] * start + list(row) for start, row in zip(starts, rows, strict=True)]
    return torch.tensor(tokens, device=device), torch.tensor(starts, device=device)
