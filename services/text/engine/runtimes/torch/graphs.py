"""Decoding in steps of fixed shapes, which a GPU replays as one recorded graph instead of launching each kernel.

A step in which every sequence decodes one token is padded to the next size: sequences and pages in powers of two. The
padding consists of sequences at position 0 of the trash page (`TRASH_PAGE`). The first step of a size is recorded; if
that fails, the model runs without graphs.

Without a GPU the same padded steps can run unrecorded, so that tests can compare them with ordinary steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from services.text.engine.kv_cells import BLOCK
from services.text.engine.runtimes.torch.attention import TRASH_PAGE, ZERO_PAGE, Plan
from services.text.engine.runtimes.torch.packing import Batch, Packed, decode_plan

log = logging.getLogger(__name__)

Forward = Callable[[Packed], Tensor]
_SMALLEST_PAGES = 8


@dataclass(slots=True)
class _Step:
    """The buffers of one size, and the graph recorded on them."""

    tokens: Tensor  # [sequences]
    positions: Tensor  # [sequences]
    shifts: Tensor  # [sequences]: how much less rotary embeddings count
    pages: Tensor  # [sequences, pages]
    logits: Tensor | None = None  # [sequences, vocabulary]
    graph: torch.cuda.CUDAGraph | None = None


class DecodeSteps:
    """The fixed decoding steps of a model. `record`: as CUDA graphs."""

    def __init__(
        self, forward: Forward, windows: Sequence[int], most: int, device: torch.device, *, record: bool
    ) -> None:
        self._forward = forward
        self._windows = windows
        self._most = most
        self._device = device
        self._record = record
        self._steps: dict[tuple[int, int], _Step] = {}
        self._pool: Any = None  # memory that all graphs share: they never run at the same time
        self._logits: Tensor | None = None  # [most, vocabulary], which all graphs write to

    def fits(self, batch: Batch) -> bool:
        """Returns True if the batch has only spans of a single token, and not too many."""
        return len(batch.tokens) == len(batch.counts) <= self._most and not batch.pictures

    def run(self, batch: Batch) -> Tensor:
        """Computes the logits [spans, vocabulary] of a batch that fits."""
        count, width = batch.pages.shape
        size = min(_power(count), self._most), _power(max(width, _SMALLEST_PAGES))
        step = self._steps.get(size)
        if step is None:
            step = self._steps[size] = self._new_step(*size)
        self._fill(step, batch)
        if step.graph is None and self._record:
            self._capture(step)
        if step.graph is not None and step.logits is not None:
            step.graph.replay()
            return step.logits[:count]
        return self._compute(step)[:count]

    def _new_step(self, count: int, width: int) -> _Step:
        def empty(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.long, device=self._device)

        return _Step(empty(count), empty(count), empty(count), empty(count, width))

    def _fill(self, step: _Step, batch: Batch) -> None:
        count, width = batch.pages.shape
        step.tokens[:count] = torch.tensor(batch.tokens, device=self._device)
        step.tokens[count:] = 0
        step.positions[:count] = torch.tensor(batch.starts, device=self._device)
        step.positions[count:] = 0
        step.shifts.zero_()
        if batch.shifts:
            step.shifts[:count] = torch.tensor(batch.shifts, device=self._device)
        step.pages.fill_(ZERO_PAGE)
        step.pages[:count, :width] = batch.pages.to(self._device)
        step.pages[count:, 0] = TRASH_PAGE

    def _compute(self, step: _Step) -> Tensor:
        """Computes the step in the buffers, with tensors only, so that it can be recorded."""
        cells = step.pages.gather(1, step.positions[:, None] // BLOCK)[:, 0] * BLOCK + step.positions % BLOCK
        plan = Plan(cells, decode_plan(step.positions, step.pages, self._windows), [])
        rows = torch.arange(len(step.tokens), device=self._device)
        return self._forward(Packed(step.tokens[None], (step.positions - step.shifts)[None], rows, plan))

    def _capture(self, step: _Step) -> None:
        """Records the step. If the definition reads its numbers on the host, this fails and turns recording off."""
        try:
            stream: Any = torch.cuda.Stream
            side = stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                first = self._compute(step)  # libraries initialise on the first run
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            if self._logits is None:
                self._logits = first.new_empty(self._most, first.shape[1])
            logits = self._logits[: len(first)]
            del first
            with torch.cuda.graph(graph, pool=self._pool):
                logits.copy_(self._compute(step))
            step.logits, step.graph = logits, graph
        except RuntimeError as error:
            log.warning("decoding is not recorded as CUDA graphs: %s", str(error).partition("\n")[0])
            self._record = False
            step.logits = None


def _power(number: int) -> int:
    """Rounds up to a power of two."""
    return 1 << max(0, number - 1).bit_length()
