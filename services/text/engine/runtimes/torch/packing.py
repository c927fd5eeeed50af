"""Packing of a step's spans into one row of tokens and embeddings, as tensors."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from services.text.engine.kv_cells import BLOCK
from services.text.engine.runtime import TokenSpan
from services.text.engine.runtimes.torch.attention import Chunk, Decode, Gather, Plan


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


@dataclass(slots=True)
class Batch:
    """The work of one step in plain numbers: all that another rank needs to compute its part."""

    starts: list[int]  # per span: position of its first token
    counts: list[int]  # per span: number of tokens
    wanted: list[int]  # per span: number of its last tokens whose logits are needed
    sequences: list[int]  # per span: sequence id
    tokens: list[int]  # of all spans
    pages: Tensor  # int64 [spans, pages]: of each span's sequence, filled up with the page of zeros
    copies: list[tuple[int, int]]  # pages to copy first, (from, to) each
    shifts: list[int] = field(default_factory=list)  # per span: how much less rotary embeddings count; empty: 0
    pictures: dict[int, Embeddings] = field(default_factory=dict)  # by span
    whole: frozenset[int] = frozenset()  # spans whose tokens see each other

    def to_bytes(self) -> bytes:
        """Serialises the batch for another process on this machine. Divided models take no pictures."""
        width = self.pages.shape[1]
        head = [len(self.starts), len(self.tokens), width, len(self.copies)]
        copies = [page for copy in self.copies for page in copy]
        spans = [*self.starts, *self.counts, *self.wanted, *self.sequences]
        return array("q", [*head, *spans, *self.tokens, *self.pages.reshape(-1).tolist(), *copies]).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Batch:
        """Reads a batch that `to_bytes` wrote."""
        numbers = array("q", data).tolist()
        spans, tokens, width, copies = numbers[:4]
        parts = _split(numbers[4:], [spans, spans, spans, spans, tokens, spans * width, 2 * copies])
        starts, counts, wanted, sequences, ids, pages, pairs = parts
        table = torch.tensor(pages, dtype=torch.long).view(spans, width)
        return cls(starts, counts, wanted, sequences, ids, table, list(zip(pairs[::2], pairs[1::2], strict=True)))


@dataclass(slots=True)
class Packed:
    """A step's input: decoding tokens first, then chunks of prompts."""

    tokens: Tensor  # [1, tokens]
    positions: Tensor  # [1, tokens]
    wanted: Tensor  # [rows]: indexes of the tokens whose logits are needed
    plan: Plan
    pictures: list[tuple[int, Embeddings]] = field(default_factory=list)  # the first row of each


def make_batch(spans: Sequence[TokenSpan], rows: Tensor, copies: list[tuple[int, int]]) -> tuple[Batch, list[int]]:
    """Builds a batch of spans. Returns it, and the indexes of the spans with wanted logits, in the order of their rows.

    `rows` are the page tables of all sequences. In the batch, spans of one token come first.
    """
    order = sorted(range(len(spans)), key=lambda number: len(spans[number].tokens) > 1)
    sorted_spans = [spans[number] for number in order]
    longest = max(-(-(span.start + len(span.tokens)) // BLOCK) for span in spans)
    batch = Batch(
        starts=[span.start for span in sorted_spans],
        counts=[len(span.tokens) for span in sorted_spans],
        wanted=[span.rows for span in sorted_spans],
        sequences=[span.sequence for span in sorted_spans],
        tokens=[token for span in sorted_spans for token in _ids(span)],
        pages=rows[torch.tensor([span.sequence for span in sorted_spans]), :longest],
        copies=copies,
    )
    if any(span.shift or span.embeddings is not None for span in spans):
        batch.shifts = [span.shift for span in sorted_spans]
        for number, span in enumerate(sorted_spans):
            if span.embeddings is not None:
                batch.pictures[number] = span.embeddings
        batch.whole = frozenset(
            number for number in batch.pictures if (part := sorted_spans[number].part) is not None and part.whole
        )
    return batch, [number for number in order if spans[number].rows]


def _ids(span: TokenSpan) -> Sequence[int]:
    """Returns a span's tokens; 0 in place of a picture's, whose embeddings are computed."""
    return span.tokens if span.embeddings is None else [0] * len(span.tokens)


def pack(batch: Batch, windows: Sequence[int], device: torch.device) -> Packed:
    """Returns the tensors of a batch. `windows` are the sliding windows of some layers."""
    counts = torch.tensor(batch.counts)
    owner = torch.repeat_interleave(torch.arange(len(batch.counts)), counts)
    ends = counts.cumsum(0)
    at = torch.arange(len(batch.tokens)) - (ends - counts)[owner] + torch.tensor(batch.starts)[owner]
    cells = batch.pages[owner, at // BLOCK] * BLOCK + at % BLOCK
    single = sum(count == 1 for count in batch.counts)
    pages = batch.pages.to(device)
    positions = at.to(device)
    decode = decode_plan(positions[:single], pages[:single], windows) if single else None
    if decode is not None:
        decode.sequences = torch.tensor(batch.sequences[:single], device=device)
    chunks = [
        Chunk(
            row=int(ends[span]) - count,
            start=batch.starts[span],
            tokens=count,
            sequence=batch.sequences[span],
            pages=pages[span : span + 1, : -(-(batch.starts[span] + count) // BLOCK)],
            whole=span in batch.whole,
        )
        for span, count in enumerate(batch.counts)
        if count > 1
    ]
    return Packed(
        tokens=torch.tensor(batch.tokens, device=device)[None],
        positions=_rotary(batch, at, owner).to(device),
        wanted=_wanted_rows(ends.tolist(), batch.wanted, device),
        plan=Plan(cells.to(device), decode, chunks),
        pictures=[(int(ends[span]) - batch.counts[span], piece) for span, piece in batch.pictures.items()],
    )


def _rotary(batch: Batch, at: Tensor, owner: Tensor) -> Tensor:
    """Returns the positions for rotary embeddings: [1, tokens], or [3, 1, tokens] if a picture has three of its own.

    `at` [tokens] are the positions in the cache, and `owner` [tokens] the spans.
    """
    if not batch.shifts:
        return at[None]
    positions = (at - torch.tensor(batch.shifts)[owner])[None]
    if all(piece.places is None for piece in batch.pictures.values()):
        return positions
    positions = positions.expand(3, -1).clone()
    ends = list(itertools.accumulate(batch.counts))
    for span, piece in batch.pictures.items():
        if piece.places is not None:
            begin = batch.starts[span] - batch.shifts[span] - piece.first
            positions[:, ends[span] - batch.counts[span] : ends[span]] = piece.places + begin
    return positions[:, None]


def _wanted_rows(ends: list[int], wanted: list[int], device: torch.device) -> Tensor:
    """Returns the indexes of the tokens whose logits are needed: the last `wanted` of each span."""
    rows = [row for end, count in zip(ends, wanted, strict=True) for row in range(end - count, end)]
    return torch.tensor(rows, dtype=torch.long, device=device)


def decode_plan(positions: Tensor, pages: Tensor, windows: Sequence[int]) -> Decode:
    """Plans the attention of tokens at `positions` [sequences] to `pages` [sequences, pages]. Uses only tensors."""
    cells = pages.shape[1] * BLOCK
    return Decode(
        count=len(positions),
        positions=positions,
        full=Gather(pages, torch.zeros_like(positions)),
        windows={window: _windowed(positions, pages, window) for window in windows if window + BLOCK < cells},
    )


def _windowed(positions: Tensor, pages: Tensor, window: int) -> Gather:
    """Selects the pages that a sliding window covers: the same number for every sequence."""
    first = (positions + 1 - window).clamp(min=0) // BLOCK
    reach = torch.arange((window + BLOCK - 2) // BLOCK + 1, device=pages.device)
    places = (first[:, None] + reach[None]).clamp(max=pages.shape[1] - 1)
    return Gather(pages.gather(1, places), first * BLOCK)


def _split(numbers: list[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    at = 0
    for size in sizes:
        yield numbers[at : at + size]
        at += size
