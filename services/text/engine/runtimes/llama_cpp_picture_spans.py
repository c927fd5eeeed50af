"""Spans of pictures in llama.cpp's batches: embeddings in place of tokens, and their positions.

llama.cpp computes a batch of embeddings as it does one of tokens, but no batch of both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from services.text.engine.messages import EngineOptions
from services.text.engine.runtime import TokenSpan
from services.worker.messages import EngineError

if TYPE_CHECKING:
    from services.text.engine.runtimes.llama_cpp_pictures import Tile


def picture_encoder(options: EngineOptions, model: Any) -> Any:
    """Returns the PictureEncoder of a model with a projector, None without one.

    Raises:
        EngineError: UNSUPPORTED if llama.cpp was built without libmtmd, MODEL_INVALID if it cannot use the projector.
    """
    if not options.projector:
        return None
    try:
        from services.text.engine.runtimes.llama_cpp_pictures import PictureEncoder  # noqa: PLC0415 (it loads libmtmd)
    except (OSError, RuntimeError, AttributeError) as error:
        message = f"the installed llama.cpp takes no pictures, because it was built without libmtmd: {error}"
        raise EngineError("UNSUPPORTED", message) from error
    return PictureEncoder(options, model)


def decode_pictures(context: Any, spans: Sequence[TokenSpan]) -> Iterator[tuple[int, list[TokenSpan]]]:
    """Computes spans of pictures: all together, but those with attention in both directions one by one.

    Yields the result of llama_decode and the spans of each batch.
    """
    together = [span for span in spans if not _tile(span).both_ways]
    for batch in ([together] if together else []) + [[span] for span in spans if _tile(span).both_ways]:
        yield _decode(context, batch), batch


def _decode(context: Any, spans: Sequence[TokenSpan]) -> int:
    counts = [len(span.tokens) for span in spans]
    total = sum(counts)
    embeddings = np.ascontiguousarray(np.concatenate([span.embeddings for span in spans]), np.float32)
    positions = np.concatenate([_positions(span) for span in spans], axis=1, dtype=np.int32)
    sequences = (llama_cpp.llama_seq_id * len(spans))(*(span.sequence for span in spans))
    size = ctypes.sizeof(llama_cpp.llama_seq_id)
    offsets = np.repeat(np.arange(len(spans), dtype=np.uintp) * size, counts)
    addresses = np.uintp(ctypes.addressof(sequences)) + offsets
    batch = llama_cpp.llama_batch(
        n_tokens=total,
        embd=embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
        pos=np.ascontiguousarray(positions).ctypes.data_as(ctypes.POINTER(llama_cpp.llama_pos)),
        n_seq_id=np.ones(total, np.int32).ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
        seq_id=addresses.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(llama_cpp.llama_seq_id))),
        logits=np.zeros(total, np.int8).ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
    )
    both_ways = _tile(spans[0]).both_ways
    if both_ways:
        llama_cpp.llama_set_causal_attn(context, False)
    result: int = llama_cpp.llama_decode(context, batch)
    if both_ways:
        llama_cpp.llama_set_causal_attn(context, True)
    return result


def _positions(span: TokenSpan) -> NDArray[np.int32]:
    """Returns the positions of a span [axes, tokens]."""
    first, places = span.start - span.shift, _tile(span).places
    if places is None:
        return np.arange(first, first + len(span.tokens), dtype=np.int32)[None]
    return places + np.int32(first)


def _tile(span: TokenSpan) -> Tile:
    tile: Tile = span.part.source  # type: ignore[union-attr]
    return tile


class Shifts:
    """By how much the positions in each sequence are less than its numbers of tokens, after each picture."""

    def __init__(self) -> None:
        self._shifts: dict[int, list[tuple[int, int]]] = {}  # by sequence: number of tokens, shift

    def add(self, spans: Sequence[TokenSpan]) -> None:
        """Records computed spans of pictures."""
        for span in spans:
            if span.part and span.part.advance is not None:
                shift = span.shift + span.part.count - span.part.advance
                self._shifts.setdefault(span.sequence, []).append((span.part.end, shift))

    def position(self, sequence: int, tokens: int) -> int:
        """Returns the position after the first `tokens` of a sequence."""
        return tokens - max((shift for end, shift in self._shifts.get(sequence, ()) if end <= tokens), default=0)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Records that a sequence begins with the first `tokens` of another one."""
        self._shifts[target] = [one for one in self._shifts.get(source, ()) if one[0] <= tokens]

    def drop(self, sequence: int, tokens: int) -> None:
        """Records that a sequence has only its first `tokens` left."""
        if sequence in self._shifts:
            self.copy(sequence, sequence, tokens)
