"""Pictures for the `llama_cpp` runtime: libmtmd encodes them with a GGUF file of its own, the projector (mmproj).

libmtmd knows the projectors: it scales a picture, cuts it into tiles if the model wants that, finds the model's own
tokens around them and encodes one tile at a time, which is a part for the batch loop. A part is computed whole in two
cases:

- attention in both directions among the tokens of a picture (Gemma 3). llama.cpp computes such tokens in one graph.
- M-RoPE (Qwen2-VL): tokens of a picture have rows and columns instead of consecutive positions, and all have the same
  first one, so that the cache cannot be cut among them. Text goes on after the longer side.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp
from numpy.typing import NDArray

from services.text.engine.messages import EngineOptions, Pixels
from services.text.engine.runtime import PicturePart, picture_token
from services.text.engine.runtimes.llama_cpp_model import MICRO_BATCH, gpu_handle, last_error, log_callback
from services.worker.messages import EngineError

_BAD_PICTURE = 2  # mtmd_tokenize_from_parts: the picture cannot be scaled


class _Chunks:
    """libmtmd's parts of one picture, with the pixels of each. Freed with the last part that refers to them."""

    def __init__(self) -> None:
        self.pointer: Any = mtmd_cpp.mtmd_input_chunks_init()

    def __len__(self) -> int:
        return int(mtmd_cpp.mtmd_input_chunks_size(self.pointer))

    def __getitem__(self, number: int) -> Any:
        return mtmd_cpp.mtmd_input_chunks_get(self.pointer, number)

    def __del__(self) -> None:
        mtmd_cpp.mtmd_input_chunks_free(self.pointer)


@dataclass(frozen=True, slots=True)
class Tile:
    """The source of a picture part."""

    owner: _Chunks  # keeps the chunk
    chunk: Any  # libmtmd's
    both_ways: bool  # whether its tokens attend in both directions
    places: NDArray[np.int32] | None  # M-RoPE's [4, tokens], relative to the first position; None: consecutive


class PictureEncoder:
    """The encoder and projector of a loaded model. Another thread may call `see` during `encode`."""

    def __init__(self, options: EngineOptions, model: Any) -> None:
        """Loads the options' projector for a text model.

        Raises:
            EngineError: MODEL_INVALID if libmtmd cannot read the file, or it belongs to another model.
        """
        mtmd_cpp.mtmd_log_set(log_callback, ctypes.c_void_p(0))
        params = mtmd_cpp.mtmd_context_params_default()
        params.use_gpu = options.gpu
        params.device = gpu_handle(options) if options.gpu else None
        params.n_threads = options.threads
        params.print_timings = False
        most = options.batch_tokens - options.max_sequences  # a step also has tokens of running answers
        rotary = llama_cpp.llama_model_rope_type(model)
        if rotary in (llama_cpp.LLAMA_ROPE_TYPE_MROPE, llama_cpp.LLAMA_ROPE_TYPE_IMROPE):
            params.image_max_tokens = most
        self._most = {False: most, True: min(MICRO_BATCH, most)}  # tokens of a whole part, by `both_ways`
        self._context = mtmd_cpp.mtmd_init_from_file(os.fsencode(options.projector), model, params)
        if not self._context or not mtmd_cpp.mtmd_support_vision(self._context):
            reason = last_error() if not self._context else "it takes no pictures"
            raise EngineError("MODEL_INVALID", f"llama.cpp cannot use the projector {options.projector}: {reason}")
        self.has_axes = bool(mtmd_cpp.mtmd_decode_use_mrope(self._context))
        self._width = llama_cpp.llama_model_n_embd_inp(model)

    def see(self, pixels: Pixels) -> tuple[list[int], list[PicturePart]]:
        """Returns a picture's tokens and parts, as `Runtime.see` does."""
        tokens: list[int] = []
        parts: list[PicturePart] = []
        chunks, digest = self._scaled(pixels), pixels.digest
        for number in range(len(chunks)):
            chunk = chunks[number]
            if mtmd_cpp.mtmd_input_chunk_get_type(chunk) == mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_TEXT:
                count = ctypes.c_size_t()
                words = mtmd_cpp.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
                tokens += words[: count.value] if words else []
                continue
            size = mtmd_cpp.mtmd_input_chunk_get_n_tokens(chunk)
            both_ways = bool(mtmd_cpp.mtmd_decode_use_non_causal(self._context, chunk))
            tile = Tile(chunks, chunk, both_ways, _places(chunk, size) if self.has_axes else None)
            whole = both_ways or self.has_axes
            if whole and size > self._most[both_ways]:
                message = f"the picture has {size} tokens, but at most {self._most[both_ways]} are computed in one step"
                raise EngineError("INVALID_REQUEST", f"{message} (ALLM_BATCH_TOKENS)", pixels.param)
            advance = mtmd_cpp.mtmd_input_chunk_get_n_pos(chunk) if self.has_axes else None
            parts.append(PicturePart(len(tokens), size, tile, whole=whole, advance=advance))
            tokens += [picture_token(digest, len(parts) - 1)] * size
        return tokens, parts

    def encode(self, part: PicturePart) -> None:
        """Computes the embeddings of a part, float32 [tokens, width]."""
        if mtmd_cpp.mtmd_encode_chunk(self._context, part.source.chunk):
            raise EngineError("INTERNAL", f"the picture cannot be encoded: {last_error()}")
        found = mtmd_cpp.mtmd_get_output_embd(self._context)
        part.embeddings = np.ctypeslib.as_array(found, (part.count, self._width)).copy()

    def _scaled(self, pixels: Pixels) -> _Chunks:
        data = (ctypes.c_uint8 * len(pixels.pixels)).from_buffer_copy(pixels.pixels)
        bitmap = mtmd_cpp.mtmd_bitmap_init(pixels.width, pixels.height, data)
        chunks = _Chunks()
        try:
            one = mtmd_cpp.mtmd_input_part(None, bitmap)
            several = (ctypes.POINTER(mtmd_cpp.mtmd_input_part) * 1)(ctypes.pointer(one))
            result = mtmd_cpp.mtmd_tokenize_from_parts(self._context, chunks.pointer, several, 1, False)
        finally:
            mtmd_cpp.mtmd_bitmap_free(bitmap)
        if result == _BAD_PICTURE:
            message = f"the model cannot take a picture of {pixels.width} x {pixels.height} pixels"
            raise EngineError("INVALID_REQUEST", message, pixels.param)
        if result:
            raise EngineError("INTERNAL", f"the picture cannot be scaled: {last_error()}", pixels.param)
        return chunks


def _places(chunk: Any, count: int) -> NDArray[np.int32]:
    tokens = mtmd_cpp.mtmd_input_chunk_get_tokens_image(chunk)
    found = (mtmd_cpp.mtmd_image_tokens_get_decoder_pos(tokens, 0, number) for number in range(count))
    return np.array([(one.t, one.y, one.x, one.z) for one in found], np.int32).T
