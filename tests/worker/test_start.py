"""Worker starts: ready, refused, dead, too slow, and cancelled; no process stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from services.errors import AllmError, Internal, ModelInvalid, Timeout
from services.worker.channel import pack
from services.worker.messages import Failed, Loading
from services.worker.process import WorkerProcess
from services.worker.start import WorkerStart, available_cores, worker_environ
from tests.worker.toy_worker import Echo, Exit, Garbage, Log, Say

FromStarted = Echo | Failed | Loading | Log
Adopted = tuple[WorkerProcess[FromStarted], Echo]


def start(load: object, seconds: float = 60.0, **environ: str) -> WorkerStart[FromStarted, Echo]:
    return WorkerStart(
        module="tests.worker.toy_worker",
        messages=FromStarted,
        ready=(Echo,),
        model_id="m",
        environ=environ,
        load=load,
        seconds=seconds,
    )


def adopt(worker: WorkerProcess[FromStarted], ready: Echo) -> Adopted:
    return worker, ready


def children() -> list[psutil.Process]:
    """Returns the running workers, without zombies."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie
            if "tests.worker.toy_worker" in child.cmdline():
                found.append(child)
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (of other processes: nothing tells)
            await asyncio.sleep(0.01)


async def failure(started: WorkerStart[FromStarted, Echo]) -> AllmError:
    with pytest.raises(AllmError) as caught:
        await started.run(adopt)
    assert children() == []
    return caught.value


async def test_a_worker_is_handed_over_with_what_it_said_first() -> None:
    worker, ready = await start(Say("ready")).run(adopt)
    try:
        assert ready == Echo("ready")
        worker.send(Say("more"))
        assert await worker.receive() == Echo("more")
    finally:
        await worker.close()


async def test_progress_is_not_the_end_of_loading() -> None:
    frames = b"".join(map(pack, (Loading(0.1), Loading(0.9), Echo("ready"))))
    worker, ready = await start(Garbage(frames)).run(adopt)
    await worker.close()
    assert ready == Echo("ready")


async def test_unloadable_model_is_reported_with_the_workers_message() -> None:
    error = await failure(start(Garbage(pack(Failed("MODEL_INVALID", "it is broken")))))
    assert isinstance(error, ModelInvalid)
    assert error.message == "it is broken"


async def test_worker_death_while_loading_is_reported_with_the_cause() -> None:
    error = await failure(start(Exit(3)))
    assert isinstance(error, Internal)
    assert error.message.startswith("m could not be loaded: ")
    assert "exit code 3" in error.message


async def test_a_worker_that_sends_something_else_first_is_ended() -> None:
    error = await failure(start(Garbage(pack(Log("x")))))
    assert isinstance(error, Internal)
    assert error.message == "the worker of m said Log before it was ready"


async def test_a_worker_that_takes_too_long_is_ended() -> None:
    error = await failure(start(Log(""), seconds=0.2))
    assert isinstance(error, Timeout)
    assert "ALLM_LOAD_SECONDS" in error.message


async def test_worker_without_an_owner_is_ended() -> None:
    def refuse(worker: Any, ready: Echo) -> Adopted:
        raise ModelInvalid("the template does not compile")

    with pytest.raises(ModelInvalid):
        await start(Say("ready")).run(refuse)
    assert children() == []


async def test_cancelled_start_leaves_no_worker() -> None:
    running = asyncio.create_task(start(Log("")).run(adopt))
    await until(lambda: len(children()) == 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()
    await until(lambda: not children())


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
