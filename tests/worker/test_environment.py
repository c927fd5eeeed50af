"""The environment of worker processes."""

from __future__ import annotations

import os

from services.worker.environment import available_cores, worker_environ


def test_cores_are_those_that_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    assert available_cores() == len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_workers_count_gpus_as_nvml_does() -> None:
    assert worker_environ(1)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_native_thread_pools_get_no_more_threads_than_the_engine() -> None:
    environ = worker_environ(3)
    assert environ["OMP_NUM_THREADS"] == "3"
    assert all(1 <= int(count) <= 3 for name, count in environ.items() if name.endswith("_NUM_THREADS"))
