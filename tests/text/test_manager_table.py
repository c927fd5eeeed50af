"""The table of runtimes: what the registry promises, the worker has; and what a worker is started with."""

from __future__ import annotations

import importlib
import inspect
import os

import pytest

from services.models.registry import RUNTIMES as PROMISED
from services.text.engine.__main__ import RUNTIMES
from services.text.engine.runtime import Runtime
from services.text.manager import WORKER_MODULE, available_cores, worker_environ


def test_the_worker_has_exactly_the_text_runtimes_of_the_registry() -> None:
    assert set(RUNTIMES) == {runtime.name for runtime in PROMISED if runtime.modality == "text"}


@pytest.mark.parametrize("name", sorted(RUNTIMES))
def test_a_runtime_is_the_module_of_its_name_and_can_all_that_the_batch_loop_asks(name: str) -> None:
    module, kind = RUNTIMES[name]
    assert module == f"services.text.engine.runtimes.{name}"
    engine = getattr(importlib.import_module(module), kind)
    asked = {member for member, _ in inspect.getmembers(Runtime, inspect.isfunction) if not member.startswith("_")}
    assert asked
    for member in asked:
        theirs, ours = inspect.signature(getattr(Runtime, member)), inspect.signature(getattr(engine, member))
        assert list(ours.parameters) == list(theirs.parameters), member


def test_the_workers_module_can_be_executed() -> None:
    assert importlib.util.find_spec(f"{WORKER_MODULE}.__main__") is not None


def test_cores_are_those_that_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    assert available_cores() == len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_native_thread_pools_get_no_more_threads_than_the_engine() -> None:
    environ = worker_environ(3)
    assert environ["OMP_NUM_THREADS"] == "3"
    assert all(1 <= int(count) <= 3 for name, count in environ.items() if name.endswith("_NUM_THREADS"))
