"""Starts a worker: launches the process, sends the first message, and waits until the model is loaded.

Environment variables set the worker's number of threads.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from services.errors import Internal, Timeout, from_code
from services.worker.messages import Failed, Loading
from services.worker.process import WorkerDied, WorkerProcess

M = TypeVar("M")
L = TypeVar("L")
R = TypeVar("R")


def available_cores() -> int:
    """Returns the number of cores that this process may use (its affinity mask, which containers set)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_environ(threads: int) -> Mapping[str, str]:
    """Returns the environment variables for a worker's native libraries.

    Thread pools get as many threads as the engine uses, and their waiting threads must not burn the cores: by default
    GNU's OpenMP spins for milliseconds at every barrier. A spin count of 1000 is as fast on a quiet machine (197
    against 197 tokens/s on two cores), and three times faster next to one other busy process (71 against 25).
    """
    return {
        "HF_HUB_OFFLINE": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # NVML's order: `cuda:1` in device_memory.py is the worker's `cuda:1`
        "OMP_NUM_THREADS": str(threads),
        "GOMP_SPINCOUNT": "1000",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # huge pages: weights are read from end to end for every token
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": str(threads),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart(Generic[M, L]):
    """The parameters of a model's worker."""

    module: str  # executed as `python -m module FD`
    messages: Any  # union of the messages that it sends
    ready: tuple[type[L], ...]  # of these, the one that says that the model is loaded
    model_id: str
    environ: Mapping[str, str]
    load: object  # first message to the worker
    seconds: float  # time limit of loading
    python: str = ""  # interpreter; empty: ours

    async def run(self, adopt: Callable[[WorkerProcess[M], L], R]) -> R:
        """Starts the worker and passes it to `adopt`, with its ready message. If starting or `adopt` raises, no process
        is left behind.

        Raises:
            Timeout: the model was not loaded in time.
            Internal: the worker died, or sent another message.
            AllmError: the worker's error for a model that it could not load.
        """
        try:
            worker: WorkerProcess[M] = await WorkerProcess.start(
                self.module, self.messages, self.model_id, self.environ, self.python
            )
        except OSError as error:
            who = self.python or "a worker"
            raise Internal(f"{self.model_id} could not be loaded: {who} cannot be started: {error.strerror}") from error
        try:
            worker.send(self.load)
            ready = await asyncio.wait_for(self._ready(worker), self.seconds)
            worker.belongs_to_all()
            return adopt(worker, ready)
        except TimeoutError:
            await worker.close()
            raise Timeout(
                f"{self.model_id} was not loaded within {self.seconds:g} seconds (ALLM_LOAD_SECONDS)"
            ) from None
        except WorkerDied as death:
            await worker.close()
            raise Internal(f"{self.model_id} could not be loaded: {death}") from death
        except BaseException:
            await worker.close()
            raise

    async def _ready(self, worker: WorkerProcess[M]) -> L:
        while True:
            message = await worker.receive()
            if isinstance(message, Failed):
                raise from_code(message.code, message.message)
            if isinstance(message, self.ready):
                return message
            if not isinstance(message, Loading):
                raise Internal(f"the worker of {self.model_id} said {type(message).__name__} before it was ready")
