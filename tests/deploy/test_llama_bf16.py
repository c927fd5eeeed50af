"""containers/llama_bf16.c, as it is compiled into the installed llama.cpp: products of BF16 weights with AMX.

Without AMX, the same tests are about llama.cpp's own product.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from numpy.typing import NDArray

from services.text.engine.runtime import TokenSpan
from services.text.engine.runtimes.llama_cpp import LlamaEngine
from services.text.engine.sampling import SamplingParams
from services.worker.ggml_devices import ggml_function
from tests.case import case
from tests.text.engine.session import options
from tests.verification.random_gguf import write_glm4, write_nemotron_h

F32, BF16 = 0, 30  # GGML_TYPE_*
FILE_BF16 = 32  # LLAMA_FTYPE_MOSTLY_BF16
WITH_AMX = " amx_bf16 " in Path("/proc/cpuinfo").read_text()


class Params(ctypes.Structure):
    """struct ggml_compute_params"""

    _fields_ = (
        ("ith", ctypes.c_int),
        ("nth", ctypes.c_int),
        ("wsize", ctypes.c_size_t),
        ("wdata", ctypes.c_void_p),
        ("threadpool", ctypes.c_void_p),
        ("use_ref", ctypes.c_bool),
    )


def rounded(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounds to BF16, to the nearest even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def widened(values: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (values.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.skipif(not WITH_AMX, reason="the processor has no AMX")
def test_a_product_is_that_of_the_rounded_numbers() -> None:
    size, pointer, number = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int
    settings = ctypes.create_string_buffer(1024)  # struct ggml_threadpool_params
    ggml_function("ggml_threadpool_params_init", None, pointer, number)(settings, 1)
    pool = ggml_function("ggml_threadpool_new", pointer, pointer)(settings)
    product = ggml_function(
        "__wrap_llamafile_sgemm", ctypes.c_bool,
        pointer, size, size, size, pointer, size, pointer, size, pointer, size, number, number, number,
    )  # fmt: skip
    random = np.random.default_rng(5)
    # Single columns, whole and partial tiles, more than one block; rows that overlap those before them.
    for m, n, k in (32, 1, 32), (48, 5, 64), (33, 16, 96), (70, 17, 64), (64, 31, 576), (576, 130, 320), (200, 257, 64):
        with case(m=m, n=n, k=k):
            a = rounded(random.standard_normal((m, k + 8), np.float32))
            b = random.standard_normal((n, k + 4), np.float32)
            c = np.full((n + 1, m + 3), 7, np.float32)
            work = np.zeros(n * k, np.uint16)
            params = Params(0, 1, work.nbytes, work.ctypes.data, pool)
            done = product(
                ctypes.byref(params), m, n, k, a.ctypes.data, k + 8, b.ctypes.data, k + 4, c.ctypes.data, m + 3,
                BF16, F32, F32,
            )  # fmt: skip
            assert done
            wanted = widened(rounded(b[:, :k].copy())) @ widened(a)[:, :k].T
            np.testing.assert_allclose(c[:n, :m], wanted, rtol=1e-3, atol=1e-4 * k**0.5)
            assert (c[n] == 7).all()
            assert (c[:, m:] == 7).all()
    assert not product(
        ctypes.byref(params), m, n, k, a.ctypes.data, k + 8, b.ctypes.data, k + 4, c.ctypes.data, m + 3, F32, BF16, F32
    )
    ggml_function("ggml_threadpool_free", None, pointer)(pool)


@pytest.mark.parametrize("write", [write_glm4, write_nemotron_h])
def test_the_number_of_threads_changes_nothing(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """Nemotron-H's state-space layers multiply several sequences in one operation."""
    source, path = write(tmp_path), tmp_path / "bf16.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FILE_BF16
    assert llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(path), params) == 0
    exact, *found = (logits(LlamaEngine(options(file, threads=threads), lambda _: None)) for file, threads in (
        (source, 2), (path, 1), (path, 2), (path, 3),
    ))  # fmt: skip
    for each in found:
        assert (each == found[0]).all()
    assert np.abs(found[0] - exact).mean() < 0.02 * exact.std()


def logits(engine: LlamaEngine) -> NDArray[np.float32]:
    """Returns the logits of a prompt, and of the next token of three sequences."""
    sampler = engine.sampler(SamplingParams(temperature=0), [0], None, None)
    engine.step([TokenSpan(0, 0, [5 + at % 90 for at in range(150)], sampler)])
    found = [row(engine, 1)]
    for sequence in 1, 2:
        engine.step([TokenSpan(sequence, 0, [sequence + 5, 8, 9], sampler)])
    engine.step([TokenSpan(0, 150, [7], sampler), TokenSpan(1, 3, [7], sampler), TokenSpan(2, 3, [9], sampler)])
    found.append(row(engine, 3))
    engine.free_sampler(sampler)
    return np.concatenate(found)


def row(engine: LlamaEngine, count: int) -> NDArray[np.float32]:
    got = llama_cpp.llama_get_logits(engine._context)
    return np.ctypeslib.as_array(got, (count, engine.ready.vocabulary)).copy()
