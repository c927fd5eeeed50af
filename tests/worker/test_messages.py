"""Messages between workers and services: out-of-memory faults are recognised by their text."""

from __future__ import annotations

import pytest

from services.worker.messages import is_out_of_memory
from tests.case import case


def test_out_of_memory_is_recognised_by_its_message() -> None:
    for error in [
        MemoryError(),
        RuntimeError("mkl_malloc: failed to allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:128] DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("std::bad_alloc"),
    ]:
        with case(error=error):
            assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("memory layout"), KeyError("allocator")])
def test_other_errors_are_not_out_of_memory(error: Exception) -> None:
    assert not is_out_of_memory(error)
