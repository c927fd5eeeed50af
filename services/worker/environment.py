"""What a worker process is started with: as many threads as the machine gives it, and no more."""

from __future__ import annotations

import os
from collections.abc import Mapping


def available_cores() -> int:
    """Cores that this process may use (its affinity mask, which containers set)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_environ(threads: int) -> Mapping[str, str]:
    """What native libraries are told by their environment.

    Thread pools have as many threads as the engine uses, which wait without burning the cores: GNU's OpenMP spins for
    milliseconds at every barrier. On a quiet machine a thousand turns are as fast (197 against 197 tokens/s on two
    cores); beside one other busy process they were three times faster (71 against 25).
    """
    return {
        "HF_HUB_OFFLINE": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as NVML counts GPUs: what device_memory.py calls `cuda:1` is the worker's
        "OMP_NUM_THREADS": str(threads),
        "GOMP_SPINCOUNT": "1000",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # huge pages: weights are read from end to end for every token
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": str(threads),
    }
