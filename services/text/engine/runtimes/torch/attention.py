"""Attention over a paged key-value cache, for sequences of any lengths that are packed into one row of tokens.

transformers' definitions call what is registered here under `NAME`. They hand their new keys and values to the cache
first (`PagedCache.update`), then ask for attention; which token belongs to which sequence is in the cache's `plan`.

Shapes: a packed query is [1, heads, tokens, width]; a layer of the cache is [pages, 2, key heads, BLOCK, width]: one
gather brings a sequence's keys and values together, each head's in one piece. Decoding tokens come first in the
row, one per sequence, then chunks of prompts. All heads that share a key head are computed together, as if they were
successive queries of it: keys are never repeated in memory.

A sink (gpt-oss) is a key that every query sees, with a score of its own and nothing to say: page 0, which is all
zeros, stands in for it, and its score goes into the mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from services.text.engine.kv_cells import BLOCK
from services.text.engine.runtimes.torch.pages import ZERO_PAGE

NAME = "allm_paged"


@dataclass(slots=True)
class Gather:
    """Pages that queries look at, [sequences, pages], and which position comes first in each row of them."""

    pages: Tensor
    first: Tensor  # [sequences]
    rows: dict[tuple[int, bool], Tensor] = field(default_factory=dict)
    masks: dict[tuple[int, bool], Tensor] = field(default_factory=dict)

    def fetch(self, layer: Tensor, sinks: bool) -> tuple[Tensor, Tensor]:
        """Keys and values, [sequences, key heads, cells, width] each; with sinks, a page of zeros comes last."""
        heads, width = layer.shape[2], layer.shape[4]
        rows = self.rows.get((heads, sinks))
        if rows is None:
            rows = self.rows[heads, sinks] = self._rows(heads, sinks)
        both = layer.view(-1, BLOCK * width).index_select(0, rows)
        keys, values = both.view(2, self.pages.shape[0], heads, -1, width).unbind(0)
        return keys, values

    def _rows(self, heads: int, sinks: bool) -> Tensor:
        """Which rows [pages * 2 * key heads, BLOCK * width] of a layer to take, in the order of `fetch`."""
        pages = self.pages
        if sinks:
            pages = torch.cat([pages, pages.new_full((pages.shape[0], 1), ZERO_PAGE)], 1)
        each = torch.arange(2 * heads, device=pages.device).view(2, 1, heads, 1)
        return (pages[None, :, None, :] * (2 * heads) + each).reshape(-1)


@dataclass(slots=True)
class Decode:
    """One new token each of `count` sequences, at `positions` [count]."""

    count: int
    positions: Tensor
    full: Gather
    windows: dict[int, Gather]  # by sliding window; missing where the window is longer than all sequences
    sequences: Tensor | None = None  # [count]: their ids, for layers with recurrent state

    def gather(self, window: int) -> Gather:
        """The pages for a layer with this window."""
        return self.windows.get(window, self.full)


@dataclass(slots=True)
class Chunk:
    """`tokens` successive tokens of a prompt, `sequence`, from position `start` on, at `row` of the packed tokens."""

    row: int
    start: int
    tokens: int
    sequence: int
    pages: Tensor  # [1, pages]
    gathers: dict[int, Gather] = field(default_factory=dict)

    def gather(self, window: int) -> Gather:
        """The pages for a layer with this window: those before all windows are left out."""
        found = self.gathers.get(window)
        if found is None:
            hidden = max(0, self.start + 1 - window) // BLOCK if window else 0
            first = torch.tensor([hidden * BLOCK], device=self.pages.device)
            found = self.gathers[window] = Gather(self.pages[:, hidden:], first)
        return found


@dataclass(slots=True)
class Plan:
    """What one step computes: in which cells its tokens [tokens] go, and who looks at what."""

    cells: Tensor
    decode: Decode | None
    chunks: list[Chunk]
    rows: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def places(self, heads: int) -> tuple[Tensor, Tensor]:
        """Where each token's keys and values go, as rows [tokens * key heads] of a layer seen as rows of one width."""
        found = self.rows.get(heads)
        if found is None:
            page, offset = self.cells // BLOCK, self.cells % BLOCK
            each = torch.arange(heads, device=page.device)[None]
            keys = ((page * (2 * heads))[:, None] + each) * BLOCK + offset[:, None]
            found = self.rows[heads] = keys.view(-1), (keys + heads * BLOCK).view(-1)
        return found


class PagedCache:
    """Keys and values of all layers; transformers' definitions use it as their `past_key_values`."""

    def __init__(
        self, pages: int, shapes: dict[int, tuple[int, int]], dtype: torch.dtype, device: torch.device
    ) -> None:
        """`shapes` has (key heads, width) of each layer that has keys."""
        self.plan: Plan
        self.layers = {
            layer: torch.zeros(pages, 2, heads, BLOCK, width, dtype=dtype, device=device)
            for layer, (heads, width) in shapes.items()
        }

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Writes the packed tokens' keys and values [1, key heads, tokens, width]; returns them as they are."""
        layer = self.layers[layer_idx]
        width = layer.shape[4]
        keys, values = self.plan.places(layer.shape[2])
        flat = layer.view(-1, width)
        flat.index_copy_(0, keys, key.transpose(1, 2).reshape(-1, width))
        flat.index_copy_(0, values, value.transpose(1, 2).reshape(-1, width))
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Some definitions ask; positions are always given, so that nothing follows from it."""
        return 0

    def copy_pages(self, copies: list[tuple[int, int]]) -> None:
        """Copies pages, (from, to) each."""
        for source, target in copies:
            for layer in self.layers.values():
                layer[target] = layer[source]


class UnknownCacheUse(AttributeError):
    """A definition treats its cache in a way that the paged one does not know."""


class CacheProbe:
    """Stands in for the cache while a definition runs on one token, to see what keys it makes."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, int]] = {}  # by layer: key heads, width

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Takes note of a layer's shape. Raises UnknownCacheUse where the paged cache could not hold it."""
        if key.shape != value.shape:
            raise UnknownCacheUse("has keys and values of different width")
        self.shapes[layer_idx] = (key.shape[1], key.shape[3])
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """As PagedCache."""
        return 0

    def __getattr__(self, name: str) -> Any:
        raise UnknownCacheUse(f"needs a cache with {name}")


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    pages: PagedCache | CacheProbe | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What a definition calls: attention of the packed tokens, [1, tokens, heads, width]. The mask is not looked at."""
    if isinstance(pages, CacheProbe):
        return query.transpose(1, 2), None
    if pages is None:
        raise ValueError(f"{type(module).__name__} does not hand its keyword arguments on to attention")
    plan, layer = pages.plan, pages.layers[module.layer_idx]  # type: ignore[index]
    rows = query[0].transpose(0, 1)
    tokens, heads, width = rows.shape
    shape = _Shape(layer.shape[2], heads // layer.shape[2], scaling or width**-0.5, sliding_window or 0, s_aux, softcap)
    if plan.decode is not None and not plan.chunks:
        return _decode(rows, layer, plan.decode, shape).view(1, tokens, heads, width), None
    out = rows.new_empty(tokens, heads, width)
    if plan.decode is not None:
        out[: plan.decode.count] = _decode(rows[: plan.decode.count], layer, plan.decode, shape)
    for chunk in plan.chunks:
        place = slice(chunk.row, chunk.row + chunk.tokens)
        out[place] = _chunk(rows[place], layer, chunk, shape)
    return out[None], None


@dataclass(slots=True)
class _Shape:
    """What a layer's attention is like: `group` query heads for each of `keys` key heads."""

    keys: int
    group: int
    scale: float
    window: int  # tokens that a query sees, itself included; 0: all
    sinks: Tensor | None  # [heads]
    softcap: float | None


def _decode(rows: Tensor, layer: Tensor, decode: Decode, shape: _Shape) -> Tensor:
    """Attention of rows [sequences, heads, width], each a sequence's newest token."""
    gather = decode.gather(shape.window)
    sinks = shape.sinks is not None
    keys, values = gather.fetch(layer, sinks)
    mask = gather.masks.get((shape.window, sinks))
    if mask is None:
        at = gather.first[:, None] + torch.arange(keys.shape[2], device=rows.device)
        mask = _mask(at, decode.positions[:, None], shape.window, rows.dtype)[:, None, None]
        gather.masks[shape.window, sinks] = mask
    if shape.sinks is not None:
        mask = _with_sinks(mask, shape.sinks.view(1, shape.keys, shape.group))
    query = rows.reshape(rows.shape[0], shape.keys, shape.group, rows.shape[2])
    if rows.device.type == "cpu":
        return _products(query, keys, values, mask, shape).reshape(rows.shape)
    return _attention(query, keys, values, mask, shape).reshape(rows.shape)


def _chunk(rows: Tensor, layer: Tensor, chunk: Chunk, shape: _Shape) -> Tensor:
    """Attention of rows [tokens, heads, width], successive tokens of one sequence."""
    gather = chunk.gather(shape.window)
    sinks = shape.sinks is not None
    keys, values = gather.fetch(layer, sinks)
    mask = gather.masks.get((shape.window, sinks))
    if mask is None:
        at = gather.first + torch.arange(keys.shape[2], device=rows.device)
        position = torch.arange(chunk.start, chunk.start + chunk.tokens, device=rows.device)[:, None]
        mask = gather.masks[shape.window, sinks] = _mask(at[None], position, shape.window, rows.dtype)
    if shape.sinks is not None:
        mask = _with_sinks(mask, shape.sinks.view(shape.keys, shape.group, 1))
    query = rows.view(rows.shape[0], shape.keys, shape.group, rows.shape[2]).permute(1, 2, 0, 3)
    keys, values = (each[0][:, None].expand(-1, shape.group, -1, -1) for each in (keys, values))
    return _attention(query, keys, values, mask, shape).permute(2, 0, 1, 3).reshape(rows.shape)


def _mask(at: Tensor, position: Tensor, window: int, dtype: torch.dtype) -> Tensor:
    """0 where a token at `position` [tokens, 1] sees the cell of position `at` [.., cells], else minus infinity."""
    seen = at <= position
    if window:
        seen &= at > position - window
    return torch.zeros(seen.shape, dtype=dtype, device=at.device).masked_fill_(~seen, -math.inf)


def _with_sinks(mask: Tensor, scores: Tensor) -> Tensor:
    """A mask [.., cells] with the sinks' scores [..]: of the last page, which is zeros, they take the first cell."""
    full = mask.expand(*(mask[..., 0] + scores).shape, mask.shape[-1]).clone()
    full[..., -BLOCK] = scores.to(mask.dtype)
    return full


def _attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, shape: _Shape) -> Tensor:
    """Of queries [.., heads, queries, width], with a mask that can be broadcast to [.., heads, queries, cells]."""
    if not shape.softcap:
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=shape.scale)
    scores = torch.matmul(query, keys.transpose(-1, -2)).float() * shape.scale
    weights = torch.softmax(torch.tanh(scores / shape.softcap) * shape.softcap + mask, dim=-1)
    return torch.matmul(weights.to(values.dtype), values)


def _products(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, shape: _Shape) -> Tensor:
    """The same by plain products of matrices: for few queries a CPU's fused kernel takes two to four times as long."""
    if shape.softcap:
        return _attention(query, keys, values, mask, shape)
    sequences, heads, queries, _ = query.shape
    scores = torch.baddbmm(
        mask.expand(sequences, heads, queries, -1).reshape(sequences * heads, queries, -1),
        query.reshape(sequences * heads, queries, -1),
        keys.reshape(sequences * heads, *keys.shape[2:]).transpose(1, 2),
        alpha=shape.scale,
    )
    return torch.bmm(torch.softmax(scores, -1), values.reshape(sequences * heads, *values.shape[2:]))


AttentionInterface.register(NAME, attend)
