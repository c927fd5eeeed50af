"""Cache memory of llama.cpp that takes room only for the cells in use: a stream of a whole context for every sequence.

Attention over a stream reads only the cells of its own sequence, so streams are the fastest layout. But llama.cpp
writes zeros to the whole cache when it creates a context, and copies whole streams: 32 contexts of 8,192 tokens of a
model of 135M parameters would take 6 GB. Here the zeros are those of fresh pages, which Linux provides when a cell is
first written. A copy moves only the cells in use, and the pages of freed cells go back to the system.

This replaces three functions of the cache's buffer, whose layout is internal to ggml
(https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-backend-impl.h). `supported` compares the layout with
the one known here; with another one, the runtime uses another layout of the cache.

A sequence is alone in its stream and its tokens are computed in order, so the token at position N has the stream's row
N. A row holds the key or the value of one token in one layer.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from services.text.engine.runtime import TokenSpan
from services.worker.ggml_devices import ggml_function

MOST_FILLED = 4  # ids between two decoding sequences
_API_VERSION = 2  # GGML_BACKEND_API_VERSION
# Places in the pointers of ggml_backend_buffer_type and of ggml_backend_buffer.
_ALLOC = 1
_INIT, _SET, _CLEAR, _TYPE, _SIZE = 2, 4, 9, 11, 13
_POINTERS = _SIZE + 1
_SIZES, _STRIDES = 16, 48  # places of `ne` and `nb` in ggml_tensor, in bytes

_Alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_Init = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_Set = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_Clear = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint8)
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The keys or the values of one layer, in all streams."""

    address: int
    row: int  # bytes
    stream: int  # bytes from one stream to the next


class StreamMemory:
    """The memory of a context's cache. One thread uses it."""

    def __init__(self, create: Callable[[], Any], streams: int) -> None:
        """Calls `create`, which creates a context with `streams` streams in host memory, or returns null."""
        self._streams = streams
        self._buffers: dict[int, list[int | None]] = {}  # pointers of each new buffer, before they were replaced
        self._caches: set[int] = set()  # the buffers that hold keys and values
        self._tensors: list[_Rows] = []
        self._used = [0] * streams  # rows of each stream that may have pages
        # llama.cpp keeps only the addresses of these.
        self._functions = {_INIT: _Init(self._init), _SET: _Set(_copied), _CLEAR: _Clear(_clear)}
        with self._in_new_buffers():
            self.context = create()
        for each in self._tensors:
            # A huge page holds thousands of rows, most of them unused.
            _advise(each.address, each.address + streams * each.stream, mmap.MADV_NOHUGEPAGE)

    def use(self, stream: int, rows: int) -> None:
        """Records that the first `rows` rows of a stream are written."""
        self._used[stream] = max(self._used[stream], rows)

    def copy(self, source: int, target: int, rows: int) -> None:
        """Copies the first `rows` rows of a stream. llama.cpp's own copy of the whole stream then does nothing."""
        for each in self._tensors:
            to, start = each.address + target * each.stream, each.address + source * each.stream
            ctypes.memmove(to, start, rows * each.row)
        self.use(target, rows)

    def free(self, stream: int, start: int, slack: int) -> None:
        """Gives the pages of the rows from `start` on back if these are more than `slack` rows."""
        end = self._used[stream]
        if end - start <= slack:
            return
        for each in self._tensors:
            base = each.address + stream * each.stream
            last = min(end * each.row + mmap.PAGESIZE, each.stream)  # with the page that the last row begins
            _advise(base + start * each.row, base + last, mmap.MADV_DONTNEED)
        self._used[stream] = start

    @contextmanager
    def _in_new_buffers(self) -> Iterator[None]:
        """Replaces the functions of all host buffers that are created, and afterwards restores those without a cache.

        The functions of a buffer are its own; new ones get those of its type.
        """
        kind = _cpu_type()
        allocate = _Alloc(kind[_ALLOC] or 0)

        def hooked(buffer_type: int, size: int) -> int | None:
            buffer: int | None = allocate(buffer_type, size)
            if buffer:
                pointers = _pointers(buffer)
                self._buffers[buffer] = list(pointers)
                for place, function in self._functions.items():
                    pointers[place] = ctypes.cast(function, ctypes.c_void_p).value
            return buffer

        original, hook = kind[_ALLOC], _Alloc(hooked)
        kind[_ALLOC] = ctypes.cast(hook, ctypes.c_void_p).value
        try:
            yield
        finally:
            kind[_ALLOC] = original
            for buffer, before in self._buffers.items():
                restored = (_INIT,) if buffer in self._caches else self._functions
                for place in restored:
                    _pointers(buffer)[place] = before[place]

    def _init(self, buffer: int, tensor: int) -> int:
        """Notes a tensor of the cache [numbers of a row, rows, streams]; others are views of single streams."""
        sizes = (ctypes.c_int64 * 4).from_address(tensor + _SIZES)
        if sizes[2] == self._streams:
            strides = (ctypes.c_size_t * 4).from_address(tensor + _STRIDES)
            address = ggml_function("ggml_get_data", ctypes.c_void_p, ctypes.c_void_p)(tensor)
            self._tensors.append(_Rows(address, strides[1], strides[2]))
            self._caches.add(buffer)
        return 0


def gap_fillers(spans: Sequence[TokenSpan], end: Callable[[int], int], context: int, room: int) -> list[TokenSpan]:
    """Returns spans of one token that make the ids of decoding sequences consecutive; their cells must be removed.

    llama.cpp divides a batch at a gap into two graphs, each of which reads all weights: a step of eight took half as
    long again, and with the gap filled 7% longer. `end` returns the position after a sequence's last token; a stream
    has `context` positions, a batch has `room` tokens.
    """
    room -= sum(len(span.tokens) for span in spans)
    fillers: list[TokenSpan] = []
    for before, after in pairwise(spans):
        gap = range(before.sequence + 1, after.sequence)
        if len(before.tokens) == len(after.tokens) == 1 and 0 < len(gap) <= MOST_FILLED:
            new = [TokenSpan(sequence, end(sequence), [0], None) for sequence in gap]
            if len(fillers) + len(new) <= room and all(span.start < context for span in new):
                fillers += new
    return fillers


def supported() -> bool:
    """Returns True on Linux if buffers have the layout that this module knows."""
    if sys.platform != "linux":
        return False
    try:
        registry = ggml_function("ggml_backend_reg_by_name", ctypes.c_void_p, ctypes.c_char_p)(b"CPU")
        new = ggml_function("ggml_backend_buft_alloc_buffer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        drop = ggml_function("ggml_backend_buffer_free", None, ctypes.c_void_p)
        kind = ctypes.addressof(_cpu_type())
    except AttributeError:
        return False
    if not registry or ctypes.c_int.from_address(registry).value != _API_VERSION:
        return False
    buffer = new(kind, mmap.PAGESIZE)
    pointers = _pointers(buffer)
    known: bool = pointers[_TYPE] == kind and pointers[_SIZE] == mmap.PAGESIZE
    drop(buffer)
    return known


def _copied(buffer: int, tensor: int, data: int, offset: int, size: int) -> None:
    """Replaces the copy into a stream, the only caller: `StreamMemory.copy` has copied its rows already."""


def _clear(buffer: int, value: int) -> None:
    """Replaces the zeros of a new buffer by fresh pages, which are zero."""
    start = ggml_function("ggml_backend_buffer_get_base", ctypes.c_void_p, ctypes.c_void_p)(buffer)
    end = start + (_pointers(buffer)[_SIZE] or 0)
    first, last = _advise(start, end, mmap.MADV_DONTNEED)
    ctypes.memset(start, value, first - start)
    ctypes.memset(last, value, end - last)


def _advise(start: int, end: int, advice: int) -> tuple[int, int]:
    """Gives advice about the whole pages between two addresses, madvise(2). Returns the addresses of the first page and
    of the end of the last one.
    """
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if first >= last or _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), advice):
        return end, end
    return first, last


def _cpu_type() -> Any:
    """Returns the pointers of the type of host buffers."""
    address = ggml_function("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
    return (ctypes.c_void_p * (_ALLOC + 1)).from_address(address)


def _pointers(buffer: int) -> Any:
    return (ctypes.c_void_p * _POINTERS).from_address(buffer)
