"""Real worker processes: start, loading, messages, and every kind of end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.errors import AllmError, Internal, ModelInvalid, Timeout
from services.telemetry import logs
from services.worker.channel import pack
from services.worker.messages import LoadFailed, Loading
from services.worker.process import (
    WorkerDied,
    WorkerProcess,
    WorkerStart,
    available_cores,
    describe_exit,
    worker_environ,
)
from tests.processes import has_ended
from tests.worker.toy_worker import (
    Breed,
    Deafen,
    Echo,
    Environ,
    Exit,
    FromToy,
    Garbage,
    Hang,
    Log,
    Say,
    Stop,
)

Toy = WorkerProcess[FromToy]


@pytest.fixture
async def worker() -> AsyncIterator[Toy]:
    started = await start()
    yield started
    await started.close()


async def start(**environ: str) -> Toy:
    return await WorkerProcess.start("tests.worker.toy_worker", FromToy, "toy", environ)


async def died(worker: Toy) -> str:
    with pytest.raises(WorkerDied) as caught:
        async with asyncio.timeout(60):
            await worker.receive()
    return str(caught.value)


def open_sockets(pid: int) -> set[str]:
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists the folder
            found.add(str(entry.readlink()))
    return {target for target in found if target.startswith("socket:")}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (another process changes it)
            await asyncio.sleep(0.01)


async def test_messages_go_both_ways_in_order(worker: Toy) -> None:
    texts = [str(at) * 1000 for at in range(50)]
    for text in texts:
        worker.send(Say(text))
    assert [(await worker.receive()).text for _ in texts] == texts
    assert psutil.Process(worker.pid).ppid() == os.getpid()


async def test_the_stream_of_messages_ends_with_how_the_worker_ended(worker: Toy) -> None:
    for message in (Say("one"), Say("two"), Exit(0)):
        worker.send(message)
    got = []
    with pytest.raises(WorkerDied):
        async for message in worker.messages():
            got.append(message)
    assert got == [Echo("one"), Echo("two")]


async def test_the_environment_is_ours_with_additions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "kept")
    monkeypatch.setenv("CHANGED", "old")
    worker = await start(CHANGED="new")
    for name in ("OURS", "CHANGED"):
        worker.send(Environ(name))
    assert [(await worker.receive()).text for _ in range(2)] == ["kept", "new"]
    await worker.close()


async def test_a_terminals_ctrl_c_does_not_reach_it(worker: Toy) -> None:
    assert os.getsid(worker.pid) == worker.pid


async def test_it_inherits_nothing_but_its_channel(worker: Toy) -> None:
    """A worker that held the service's sockets open would keep a port, or a lifeline, alive after it."""
    worker.send(Say("ready"))
    await worker.receive()
    log = os.readlink(f"/proc/{worker.pid}/fd/2")  # noqa: PTH115 (its own, though uvloop makes it a socket)
    assert len(open_sockets(worker.pid) - {log}) == 1
    assert not open_sockets(worker.pid) & open_sockets(os.getpid())


async def test_kill_is_reported_with_the_signal_name_at_once(worker: Toy) -> None:
    worker.send(Say("ready"))
    await worker.receive()
    os.kill(worker.pid, signal.SIGKILL)
    message = await died(worker)
    assert message == f"worker {worker.pid} of toy ended: killed by SIGKILL"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
async def test_crash_is_reported_with_the_signal_name(worker: Toy, number: signal.Signals) -> None:
    worker.send(Say("ready"))
    await worker.receive()
    os.kill(worker.pid, number)
    assert (await died(worker)).endswith(f"ended: killed by {number.name}")


@pytest.mark.parametrize("linger", [0.0, 0.1])
async def test_exit_code_is_reported_even_if_the_channel_closes_first(worker: Toy, linger: float) -> None:
    """An interpreter that exits after an exception closes its sockets some time before the exit."""
    worker.send(Exit(3, linger))
    assert (await died(worker)).endswith("ended: exit code 3")


async def test_worker_that_cannot_start_is_reported() -> None:
    worker: Toy = await WorkerProcess.start("tests.residency.no_such_module", FromToy, "toy", {})
    assert (await died(worker)).endswith("ended: exit code 1")
    await worker.close()


async def test_a_worker_that_closes_its_channel_and_lives_on_is_killed(worker: Toy) -> None:
    worker.send(Hang())
    assert (await died(worker)).endswith("killed by SIGKILL")
    assert not psutil.pid_exists(worker.pid)


async def test_unreadable_message_is_reported_to_the_owner_that_may_kill(worker: Toy) -> None:
    worker.send(Garbage(b"\xff\xff\xff\xff"))
    with pytest.raises(ValueError, match="over the limit"):
        await worker.receive()
    worker.kill()
    worker.kill()  # safe to repeat


async def test_close_asks_first() -> None:
    worker = await start()
    worker.send(Say("ready"))
    await worker.receive()
    await worker.close(ask=lambda: worker.send(Stop()), grace=60)
    assert worker._process.returncode == 0
    assert not psutil.pid_exists(worker.pid)


async def test_close_kills_what_does_not_listen() -> None:
    worker = await start()
    worker.send(Deafen())
    await worker.receive()
    await worker.close(ask=lambda: worker.send(Stop()), grace=0.05)
    assert worker._process.returncode == -signal.SIGKILL
    assert not psutil.pid_exists(worker.pid)


async def test_close_without_asking_kills_at_once_and_may_be_repeated() -> None:
    worker = await start()
    await worker.close()
    assert not psutil.pid_exists(worker.pid)
    await worker.close(ask=lambda: pytest.fail("nobody is there to ask"))


async def test_close_wakes_waiting_receivers() -> None:
    worker = await start()
    waiting = asyncio.create_task(died(worker))
    await asyncio.sleep(0)
    await worker.close()
    assert "ended" in await waiting


async def test_a_cancelled_close_still_kills() -> None:
    worker = await start()
    worker.send(Deafen())
    await worker.receive()
    closing = asyncio.create_task(worker.close(ask=lambda: worker.send(Stop()), grace=60))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not psutil.pid_exists(worker.pid)


async def test_stderr_goes_into_the_log_line_by_line(worker: Toy, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="services.worker.process"):
        worker.send(Log("first line\n\udcff second line\n".encode(errors="surrogateescape").decode(errors="replace")))
        await until(lambda: len(caplog.records) >= 2)
    assert [record.getMessage() for record in caplog.records] == ["worker: first line", "worker: \ufffd second line"]
    assert {record.model for record in caplog.records} == {"toy"}


async def test_an_endless_line_is_dropped_and_the_rest_goes_on(worker: Toy, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="services.worker.process"):
        worker.send(Log("x" * 1_000_000 + "\nafter\n"))
        await until(lambda: any(record.getMessage() == "worker: after" for record in caplog.records))
    assert max(len(record.getMessage()) for record in caplog.records) < 100_000
    worker.send(Say("still there"))
    assert await worker.receive() == Echo("still there")


async def test_logs_of_a_load_have_the_request_that_started_it() -> None:
    """Later output belongs to no single request."""
    seen: list[tuple[str, str]] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append((record.getMessage(), logs.request_id.get()))  # type: ignore[method-assign]
    logger = logging.getLogger("services.worker.process")
    logger.addHandler(handler)
    logs.request_id.set("id-1")
    worker = await start()
    try:
        worker.send(Log("loading\n"))
        await until(lambda: len(seen) == 1)
        worker.belongs_to_all()
        worker.send(Log("working\n"))
        await until(lambda: len(seen) == 2)
    finally:
        logger.removeHandler(handler)
        await worker.close()
    assert seen == [("worker: loading", "id-1"), ("worker: working", "")]


async def test_the_last_words_of_a_dying_worker_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    worker = await start()
    with caplog.at_level(logging.WARNING, logger="services.worker.process"):
        worker.send(Log("out of luck"))
        worker.send(Exit(1))
        await died(worker)
        await worker.close()
    assert "worker: out of luck" in [record.getMessage() for record in caplog.records]


def test_no_orphan_is_left_when_the_owner_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-m", "tests.worker.owner"], stdout=subprocess.PIPE, text=True) as owner:
        orphan = psutil.Process(int(owner.stdout.readline()))
        assert orphan.is_running()
        owner.kill()
        owner.wait()
    orphan.wait(60)  # raises TimeoutExpired if it stays
    assert not orphan.is_running()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "killed by SIGKILL"),
        (-11, "killed by SIGSEGV"),
        (-63, "killed by signal 63"),
    ],
)
def test_an_exit_code_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


async def test_children_of_a_hung_worker_end_with_it(worker: Toy) -> None:
    """The child stands for a rank of a divided model: while it hangs, it cannot notice the end itself."""
    worker.send(Breed())
    child = psutil.Process(int((await worker.receive()).text))
    async with asyncio.timeout(60):
        while child.status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110 (of another process)
            await asyncio.sleep(0.01)
        assert not worker.ended
        worker.kill()
        await died(worker)
        assert worker.ended
        while not has_ended(child):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


FromStarted = Echo | LoadFailed | Loading | Log
Adopted = tuple[WorkerProcess[FromStarted], Echo]


def worker_start(load: object, seconds: float = 60.0, **environ: str) -> WorkerStart[FromStarted, Echo]:
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


async def failure(started: WorkerStart[FromStarted, Echo]) -> AllmError:
    with pytest.raises(AllmError) as caught:
        await started.run(adopt)
    assert children() == []
    return caught.value


async def test_a_worker_is_handed_over_with_what_it_said_first() -> None:
    worker, ready = await worker_start(Say("ready")).run(adopt)
    try:
        assert ready == Echo("ready")
        worker.send(Say("more"))
        assert await worker.receive() == Echo("more")
    finally:
        await worker.close()


async def test_progress_is_not_the_end_of_loading() -> None:
    frames = b"".join(map(pack, (Loading(0.1), Loading(0.9), Echo("ready"))))
    worker, ready = await worker_start(Garbage(frames)).run(adopt)
    await worker.close()
    assert ready == Echo("ready")


async def test_unloadable_model_is_reported_with_the_workers_message() -> None:
    error = await failure(worker_start(Garbage(pack(LoadFailed("MODEL_INVALID", "it is broken")))))
    assert isinstance(error, ModelInvalid)
    assert error.message == "it is broken"


async def test_worker_death_while_loading_is_reported_with_the_cause() -> None:
    error = await failure(worker_start(Exit(3)))
    assert isinstance(error, Internal)
    assert error.message.startswith("m could not be loaded: ")
    assert "exit code 3" in error.message


async def test_a_worker_that_sends_something_else_first_is_ended() -> None:
    error = await failure(worker_start(Garbage(pack(Log("x")))))
    assert isinstance(error, Internal)
    assert error.message == "the worker of m sent Log before it was ready"


async def test_a_worker_that_takes_too_long_is_ended() -> None:
    error = await failure(worker_start(Log(""), seconds=0.2))
    assert isinstance(error, Timeout)
    assert "ALLM_LOAD_SECONDS" in error.message


async def test_worker_without_an_owner_is_ended() -> None:
    def refuse(worker: Any, ready: Echo) -> Adopted:
        raise ModelInvalid("the template does not compile")

    with pytest.raises(ModelInvalid):
        await worker_start(Say("ready")).run(refuse)
    assert children() == []


async def test_cancelled_start_leaves_no_worker() -> None:
    running = asyncio.create_task(worker_start(Log("")).run(adopt))
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
