"""Attention over a paged key-value cache, for sequences of any lengths that are packed into one row of tokens.

transformers' definitions call the attention function that is registered here under `NAME`. They first write their new
keys and values to the cache (`PagedCache.update`), then compute attention. The cache's `plan` says which token belongs
to which sequence.

Shapes: a packed query is [1, heads, tokens, width]; a layer of the cache is [pages, 2, key heads, BLOCK, width]: one
gather collects a sequence's keys and values, with each head contiguous. Decoding tokens come first in the row, one per
sequence, then chunks of prompts. All heads that share a key head are computed together, as successive queries of it, so
keys are never repeated in memory.

A sink (gpt-oss) is a key that every query sees, with its own score and a value of zero: page 0, which is all zeros,
represents it, and its score is in the mask.

A page has `BLOCK` cells, each for one token of one sequence in all layers. Sequences with a common prefix hold the same
pages; a page with several holders is copied before a write. Page 0 is never written: it stays zero and fills up short
page tables. Padding rows write to page 1.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from services.text.engine.kv_cells import BLOCK
from services.text.engine.runtime import OutOfCells

NAME = "allm_paged"
ZERO_PAGE = 0
TRASH_PAGE = 1
RESERVED_PAGES = 2


class PageTables:
    """The page tables of all sequences, as a tensor: `rows` is int64 [sequences, pages of a context]."""

    def __init__(self, count: int, sequences: int, longest: int) -> None:
        """`count`: number of pages, including the reserved ones; `longest`: maximum pages of a sequence."""
        self.rows: Tensor = torch.full((sequences, longest), ZERO_PAGE)
        self._tables: list[list[int]] = [[] for _ in range(sequences)]
        self._holders = [0] * count
        self._free = list(range(RESERVED_PAGES, count))  # a heap: lowest pages first, so that used pages stay together

    @property
    def free(self) -> int:
        """Number of unused pages."""
        return len(self._free)

    def extend(self, wanted: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
        """Allocates pages for each (sequence, start, tokens). Returns the (from, to) pages to copy before the step.

        Raises:
            OutOfCells: too few free pages; nothing was changed.
        """
        if sum(self._missing(*each) for each in wanted) > len(self._free):
            raise OutOfCells
        copies = []
        for sequence, start, tokens in wanted:
            table = self._tables[sequence]
            place = start // BLOCK
            if place < len(table) and self._holders[table[place]] > 1:
                source = table[place]
                self._holders[source] -= 1
                table[place] = self._take()
                copies.append((source, table[place]))
                self._write(sequence, place)
            before = len(table)
            while len(table) * BLOCK < start + tokens:
                table.append(self._take())
            if len(table) > before:
                self._write(sequence, before)
        return copies

    def share(self, source: int, target: int, tokens: int) -> None:
        """Replaces the pages of `target` by the pages of the first `tokens` of `source`, which both then hold."""
        self.cut(target, 0)
        shared = self._tables[source][: -(-tokens // BLOCK)]
        for page in shared:
            self._holders[page] += 1
        self._tables[target] = shared
        self._write(target, 0)

    def cut(self, sequence: int, tokens: int) -> None:
        """Frees the pages of a sequence after its first `tokens`."""
        table = self._tables[sequence]
        keep = -(-tokens // BLOCK)
        for page in table[keep:]:
            self._holders[page] -= 1
            if not self._holders[page]:
                heapq.heappush(self._free, page)
        self.rows[sequence, keep : len(table)] = ZERO_PAGE
        del table[keep:]

    def _write(self, sequence: int, place: int) -> None:
        """Copies a table, which changed from `place` on, to `rows`."""
        table = self._tables[sequence]
        self.rows[sequence, place : len(table)] = torch.tensor(table[place:])

    def _missing(self, sequence: int, start: int, tokens: int) -> int:
        """Counts the new pages that a sequence needs for `tokens` from `start` on, including a copy."""
        table = self._tables[sequence]
        place = start // BLOCK
        copied = place < len(table) and self._holders[table[place]] > 1
        return max(0, -(-(start + tokens) // BLOCK) - len(table)) + copied

    def _take(self) -> int:
        page = heapq.heappop(self._free)
        self._holders[page] = 1
        return page


@dataclass(slots=True)
class Gather:
    """The pages that queries read, [sequences, pages], and the first position of each row."""

    pages: Tensor
    first: Tensor  # [sequences]
    rows: dict[tuple[int, bool], Tensor] = field(default_factory=dict)
    masks: dict[tuple[int, bool], Tensor] = field(default_factory=dict)

    def fetch(self, layer: Tensor, sinks: bool) -> tuple[Tensor, Tensor]:
        """Returns keys and values, each [sequences, key heads, cells, width]; with sinks, the last page is zeros."""
        heads, width = layer.shape[2], layer.shape[4]
        rows = self.rows.get((heads, sinks))
        if rows is None:
            rows = self.rows[heads, sinks] = self._rows(heads, sinks)
        both = layer.view(-1, BLOCK * width).index_select(0, rows)
        keys, values = both.view(2, self.pages.shape[0], heads, -1, width).unbind(0)
        return keys, values

    def _rows(self, heads: int, sinks: bool) -> Tensor:
        """Returns indexes of rows of a layer, seen as [pages * 2 * key heads, BLOCK * width], in `fetch`'s order."""
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
    windows: dict[int, Gather]  # by sliding window; missing if the window is longer than all sequences
    sequences: Tensor | None = None  # [count]: their ids, for layers with recurrent state

    def gather(self, window: int) -> Gather:
        """Returns the pages for a layer with this window."""
        return self.windows.get(window, self.full)


@dataclass(slots=True)
class Chunk:
    """`tokens` successive prompt tokens of `sequence`, from position `start` on, at `row` of the packed tokens."""

    row: int
    start: int
    tokens: int
    sequence: int
    pages: Tensor  # [1, pages]
    whole: bool = False  # whether its tokens see each other
    gathers: dict[int, Gather] = field(default_factory=dict)

    def gather(self, window: int) -> Gather:
        """Returns the pages for a layer with this window, without those before all windows."""
        found = self.gathers.get(window)
        if found is None:
            hidden = max(0, self.start + 1 - window) // BLOCK if window else 0
            first = torch.tensor([hidden * BLOCK], device=self.pages.device)
            found = self.gathers[window] = Gather(self.pages[:, hidden:], first)
        return found


@dataclass(slots=True)
class Plan:
    """The plan of one step: the cells [tokens] that its tokens write, and the pages that each of them reads."""

    cells: Tensor
    decode: Decode | None
    chunks: list[Chunk]
    rows: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def places(self, heads: int) -> tuple[Tensor, Tensor]:
        """Returns the rows [tokens * key heads] for keys and for values, in a layer seen as [rows, width]."""
        found = self.rows.get(heads)
        if found is None:
            page, offset = self.cells // BLOCK, self.cells % BLOCK
            each = torch.arange(heads, device=page.device)[None]
            keys = ((page * (2 * heads))[:, None] + each) * BLOCK + offset[:, None]
            found = self.rows[heads] = keys.view(-1), (keys + heads * BLOCK).view(-1)
        return found


class PagedCache:
    """The keys and values of all layers. transformers' definitions use it as their `past_key_values`."""

    def __init__(
        self, pages: int, shapes: dict[int, tuple[int, int]], dtype: torch.dtype, device: torch.device
    ) -> None:
        """`shapes` maps each layer with keys to (key heads, width)."""
        self.plan: Plan
        self.layers = {
            layer: torch.zeros(pages, 2, heads, BLOCK, width, dtype=dtype, device=device)
            for layer, (heads, width) in shapes.items()
        }

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Writes the packed tokens' keys and values [1, key heads, tokens, width]. Returns them unchanged."""
        layer = self.layers[layer_idx]
        width = layer.shape[4]
        keys, values = self.plan.places(layer.shape[2])
        flat = layer.view(-1, width)
        flat.index_copy_(0, keys, key.transpose(1, 2).reshape(-1, width))
        flat.index_copy_(0, values, value.transpose(1, 2).reshape(-1, width))
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns 0. Some definitions call this, but positions are always given, so it has no effect."""
        return 0

    def copy_pages(self, copies: list[tuple[int, int]]) -> None:
        """Copies pages, (from, to) each."""
        for source, target in copies:
            for layer in self.layers.values():
                layer[target] = layer[source]


class UnknownCacheUse(AttributeError):
    """A definition uses its cache in a way that the paged cache does not support."""


class CacheProbe:
    """A replacement for the cache that records the shapes of keys while a definition runs on one token."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, int]] = {}  # by layer: key heads, width

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Records a layer's shape. Raises UnknownCacheUse if the paged cache does not support it."""
        if key.shape != value.shape:
            raise UnknownCacheUse("has keys and values of different width")
        self.shapes[layer_idx] = (key.shape[1], key.shape[3])
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns 0, as PagedCache does."""
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
    """Computes the packed tokens' attention, [1, tokens, heads, width], for a definition. Ignores the mask."""
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
    """The parameters of a layer's attention: `group` query heads for each of `keys` key heads."""

    keys: int
    group: int
    scale: float
    window: int  # tokens that a query sees, including itself; 0: all
    sinks: Tensor | None  # [heads]
    softcap: float | None


def _decode(rows: Tensor, layer: Tensor, decode: Decode, shape: _Shape) -> Tensor:
    """Computes attention of rows [sequences, heads, width], each a sequence's newest token."""
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
    """Computes attention of rows [tokens, heads, width], successive tokens of one sequence."""
    gather = chunk.gather(shape.window)
    sinks = shape.sinks is not None
    keys, values = gather.fetch(layer, sinks)
    mask = gather.masks.get((shape.window, sinks))
    if mask is None:
        at = gather.first + torch.arange(keys.shape[2], device=rows.device)
        position = torch.arange(chunk.start, chunk.start + chunk.tokens, device=rows.device)[:, None]
        last = position[-1:] if chunk.whole else position
        mask = gather.masks[shape.window, sinks] = _mask(at[None], position, shape.window, rows.dtype, last)
    if shape.sinks is not None:
        mask = _with_sinks(mask, shape.sinks.view(shape.keys, shape.group, 1))
    query = rows.view(rows.shape[0], shape.keys, shape.group, rows.shape[2]).permute(1, 2, 0, 3)
    keys, values = (each[0][:, None].expand(-1, shape.group, -1, -1) for each in (keys, values))
    return _attention(query, keys, values, mask, shape).permute(2, 0, 1, 3).reshape(rows.shape)


def _mask(at: Tensor, position: Tensor, window: int, dtype: torch.dtype, last: Tensor | None = None) -> Tensor:
    """Returns 0 where a token at `position` [tokens, 1] sees the cell at `at` [.., cells], else minus infinity.

    `last` [tokens or 1, 1] is the last position that it sees; None: its own.
    """
    seen = at <= (position if last is None else last)
    if window:
        seen = seen & (at > position - window)
    return torch.zeros(seen.shape, dtype=dtype, device=at.device).masked_fill_(~seen, -math.inf)


def _with_sinks(mask: Tensor, scores: Tensor) -> Tensor:
    """Adds the sinks' scores [..] to a mask [.., cells], at the first cell of the last page, which is all zeros."""
    full = mask.expand(*(mask[..., 0] + scores).shape, mask.shape[-1]).clone()
    full[..., -BLOCK] = scores.to(mask.dtype)
    return full


def _attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, shape: _Shape) -> Tensor:
    """Computes attention of queries [.., heads, queries, width]; `mask` broadcasts to [.., heads, queries, cells]."""
    if not shape.softcap:
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=shape.scale)
    scores = torch.matmul(query, keys.transpose(-1, -2)).float() * shape.scale
    weights = torch.softmax(torch.tanh(scores / shape.softcap) * shape.softcap + mask, dim=-1)
    return torch.matmul(weights.to(values.dtype), values)


def _products(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, shape: _Shape) -> Tensor:
    """Does the same by matrix products: for few queries, a CPU's fused kernel takes two to four times as long."""
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
