"""The supervisor with small programs as children."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from services.cli.problem import Problem
from services.cli.serve import supervisor as supervisor_module
from services.cli.serve.process import Program
from services.cli.serve.supervisor import Service, Supervisor
from tests.processes import has_ended

READY = "import pathlib, time; pathlib.Path(__import__('sys').argv[1]).touch(); time.sleep(600)"
FAILS = "import sys; print('cannot: no luck', file=sys.stderr); sys.exit(3)"
# Starts a child in a session of its own, as services start workers, and writes its process id to a file.
HAS_WORKER = f"""import pathlib, subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path(sys.argv[1] + ".worker").write_text(str(worker.pid))
{READY}"""
IGNORES_SIGTERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}"


@dataclass
class Bench:
    """Makes services and records how the supervisor handles them."""

    folder: Path
    events: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    supervisor: Supervisor | None = None

    def service(
        self,
        name: str,
        code: str,
        ready: Callable[[], Awaitable[None]] | None = None,
        answer: Callable[[], Awaitable[None]] | None = None,
    ) -> Service:
        flag = self.folder / f"{name}.ready"

        async def wait_ready() -> None:
            while not flag.exists():  # noqa: ASYNC110 - a file has no events
                await asyncio.sleep(0.01)
            flag.unlink()
            self.events.append(f"{name} ready")

        async def drain() -> None:
            self.events.append(f"{name} drained")

        program = Program(name, (sys.executable, "-c", code, str(flag)), dict(os.environ))

        async def at_once() -> None:
            pass

        return Service(program, ready or wait_ready, answer or at_once, drain)

    def on_change(self, pids: dict[str, int]) -> None:
        self.pids = dict(pids)
        self.changed.set()

    def supervise(self, *services: Service, hang_seconds: float = 0.0) -> Supervisor:
        self.supervisor = Supervisor(services, self.folder / "logs", self.said.append, self.on_change, hang_seconds)
        return self.supervisor

    def watch_closely(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Makes the supervisor ask often."""
        for name in ("ASK_SECONDS", "TICK_SECONDS", "HUNG_STOP_SECONDS"):
            monkeypatch.setattr(supervisor_module, name, 0.05)


@pytest_asyncio.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(supervisor_module, "FIRST_PAUSE", 0.01)
    bench = Bench(tmp_path)
    yield bench
    if bench.supervisor:
        await bench.supervisor.kill()
        bench.supervisor.close()


async def test_started_in_order_and_stopped_in_the_opposite_one(bench: Bench) -> None:
    supervisor = bench.supervise(bench.service("first", READY), bench.service("second", READY))
    await supervisor.start()
    assert bench.events == ["first ready", "second ready"]
    children = [psutil.Process(bench.pids[name]) for name in ("first", "second")]
    await supervisor.stop()
    assert bench.events[2:] == ["second drained", "first drained"]
    assert not any(child.is_running() for child in children)
    assert not bench.said


async def test_independent_services_start_and_stop_together(bench: Bench) -> None:
    met: set[str] = set()
    both = asyncio.Event()

    def meeting(name: str) -> Callable[[], Awaitable[None]]:
        async def meet() -> None:
            met.add(name)
            if len(met) == 2:
                both.set()
            await both.wait()
            bench.events.append(f"{name} ready")

        return meet

    first = bench.service("first", READY)
    left = bench.service("left", READY, meeting("left"))
    right = replace(bench.service("right", READY, meeting("right")), with_previous=True)
    supervisor = bench.supervise(first, left, right, bench.service("last", READY))
    await supervisor.start()
    assert (bench.events[0], bench.events[-1]) == ("first ready", "last ready")
    assert set(bench.events[1:-1]) == {"left ready", "right ready"}
    await supervisor.stop()
    assert (bench.events[4], bench.events[-1]) == ("last drained", "first drained")
    assert set(bench.events[5:-1]) == {"left drained", "right drained"}


async def test_failed_model_is_reported_while_others_are_not_ready(bench: Bench) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    failing = replace(bench.service("failing", FAILS), with_previous=True)
    with pytest.raises(Problem, match="no luck"):
        await bench.supervise(bench.service("patient", READY, never), failing).start()


async def test_children_are_out_of_reach_of_the_terminals_ctrl_c(bench: Bench) -> None:
    await bench.supervise(bench.service("first", READY)).start()
    assert os.getsid(bench.pids["first"]) != os.getsid(0)


async def test_a_crashed_child_is_started_again(bench: Bench) -> None:
    await bench.supervise(bench.service("first", READY)).start()
    old = bench.pids["first"]
    bench.changed.clear()
    os.kill(old, signal.SIGKILL)
    async with asyncio.timeout(60):
        await bench.changed.wait()
        while len(bench.said) < 2:  # noqa: ASYNC110 - said right after the change
            await asyncio.sleep(0.01)
    assert bench.pids["first"] != old
    assert "first was killed by SIGKILL" in bench.said[0]
    assert "first.log" in bench.said[0]
    assert bench.said[1] == "first is running again"


async def test_a_child_that_keeps_crashing_is_not_given_up(bench: Bench) -> None:
    """The child starts once, then fails at each restart until the cause is removed."""
    code = f"import pathlib, sys\nif pathlib.Path(sys.argv[1] + '.broken').exists(): sys.exit(9)\n{READY}"
    await bench.supervise(bench.service("first", code)).start()
    broken = bench.folder / "first.ready.broken"
    broken.touch()
    bench.changed.clear()
    os.kill(bench.pids["first"], signal.SIGKILL)
    async with asyncio.timeout(60):
        while len([line for line in bench.said if "exit status 9" in line]) < 2:  # noqa: ASYNC110 - a list
            await asyncio.sleep(0.01)
        broken.unlink()
        await bench.changed.wait()
    psutil.Process(bench.pids["first"])


async def test_a_child_that_fails_at_start_shows_its_last_words(bench: Bench) -> None:
    supervisor = bench.supervise(bench.service("first", READY), bench.service("second", FAILS))
    with pytest.raises(Problem) as raised:
        await supervisor.start()
    first, *rest = str(raised.value).splitlines()
    assert "second ended with exit status 3" in first
    assert "second.log" in first
    assert rest == ["  cannot: no luck"]


async def test_a_child_that_never_gets_ready(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "START_SECONDS", 0.2)

    async def never() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Problem, match="first was not ready"):
        await bench.supervise(bench.service("first", READY, never)).start()


async def test_a_child_that_does_not_listen_is_killed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "STOP_SECONDS", 0.2)
    supervisor = bench.supervise(bench.service("first", IGNORES_SIGTERM))
    await supervisor.start()
    child = psutil.Process(bench.pids["first"])
    await supervisor.stop()
    assert not child.is_running()


async def test_output_of_a_child_is_logged_line_by_line(bench: Bench) -> None:
    code = f"import sys\nprint('out' * 50_000)\nprint('err', end='', file=sys.stderr)\n{READY}"
    supervisor = bench.supervise(bench.service("first", code))
    await supervisor.start()
    await supervisor.stop()
    log = bench.folder / "logs" / "first.log"
    async with asyncio.timeout(60):
        while sorted(log.read_text().splitlines()) != ["err", "out" * 50_000]:  # noqa: ASYNC110 - a file has no events
            await asyncio.sleep(0.01)


async def test_the_life_line_ends_with_the_supervisor(bench: Bench) -> None:
    code = f"import os, sys; fd = int(os.environ['ALLM_LIFELINE_FD']); {READY.replace('time.sleep(600)', '')}"
    code += "os.read(fd, 1); open(sys.argv[1] + '.ended', 'w').close()"
    supervisor = bench.supervise(bench.service("first", code))
    await supervisor.start()
    assert not (bench.folder / "first.ready.ended").exists()
    supervisor.close()
    async with asyncio.timeout(60):
        while not (bench.folder / "first.ready.ended").exists():  # noqa: ASYNC110 - a file has no events
            await asyncio.sleep(0.01)


async def test_children_are_renewed_without_a_word_of_a_crash(bench: Bench) -> None:
    others = replace(bench.service("other", READY), with_previous=True)
    supervisor = bench.supervise(bench.service("first", READY), others)
    await supervisor.start()
    before = dict(bench.pids)
    async with asyncio.timeout(60):
        await supervisor.renew(["first"], 0.0)
    assert bench.said == ["first is running again"]
    await supervisor.renew(["unknown"], 0.0)
    os.kill(bench.pids["first"], signal.SIGKILL)  # from now on, an end is a crash again
    async with asyncio.timeout(60):
        while len(bench.said) < 3:  # noqa: ASYNC110 - a list
            await asyncio.sleep(0.01)
    assert "first was killed by SIGKILL" in bench.said[1]
    assert bench.pids["first"] != before["first"]
    assert bench.pids["other"] == before["other"]


async def test_a_renewal_ends_when_the_child_cannot_start_again(bench: Bench) -> None:
    code = f"import pathlib, sys\nif pathlib.Path(sys.argv[1] + '.broken').exists(): sys.exit(9)\n{READY}"
    supervisor = bench.supervise(bench.service("first", code))
    await supervisor.start()
    (bench.folder / "first.ready.broken").touch()
    async with asyncio.timeout(60):
        await supervisor.renew(["first"], 0.0)
    assert "exit status 9" in bench.said[0]


async def test_a_stopped_child_is_replaced_with_its_workers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.watch_closely(monkeypatch)

    async def runs() -> None:
        while psutil.Process(bench.pids["first"]).status() == psutil.STATUS_STOPPED:  # noqa: ASYNC110 - a process
            await asyncio.sleep(0.01)

    await bench.supervise(bench.service("first", HAS_WORKER, answer=runs), hang_seconds=0.5).start()
    child = psutil.Process(bench.pids["first"])
    worker = psutil.Process(int((bench.folder / "first.ready.worker").read_text()))
    bench.changed.clear()
    worker.suspend()
    child.suspend()
    async with asyncio.timeout(60):
        await bench.changed.wait()
        while not has_ended(worker):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
        while len(bench.said) < 2:  # noqa: ASYNC110 - said right after the change
            await asyncio.sleep(0.01)
    assert bench.pids["first"] != child.pid
    what = "first did not answer for 0.5 s (ALLM_HANG_SECONDS; the process was stopped)"
    log = bench.folder / "logs" / "first.log"
    assert bench.said == [
        f"{what} and was killed (log: {log}); restarting it in 0.01 s",
        "first is running again",
    ]
    (line,) = map(json.loads, log.read_text().splitlines())
    assert (line["level"], line["msg"]) == ("error", f"{what}: killing it")


async def test_a_slow_child_is_left_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer takes several ticks, but fewer than it may."""
    bench.watch_closely(monkeypatch)
    answers = 0

    async def slow() -> None:
        nonlocal answers
        await asyncio.sleep(0.3)
        answers += 1

    await bench.supervise(bench.service("first", READY, answer=slow), hang_seconds=60.0).start()
    before = bench.pids["first"]
    async with asyncio.timeout(60):
        while answers < 3:  # noqa: ASYNC110 - a number
            await asyncio.sleep(0.01)
    assert (bench.pids["first"], bench.said) == (before, [])


async def test_a_suspended_machine_hangs_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock jumps by an hour while a child has not answered yet."""
    monkeypatch.setattr(supervisor_module, "ASK_SECONDS", 0.0)
    loop = asyncio.get_running_loop()
    clock, jumped = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: clock() + jumped)
    asked: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def answer() -> None:
        await asked.put(answered := asyncio.Event())
        await answered.wait()

    await bench.supervise(bench.service("first", READY, answer=answer), hang_seconds=30.0).start()
    before = bench.pids["first"]
    answered = await asked.get()
    jumped += 3600.0
    await asyncio.sleep(0.1)  # all that was due within the hour happens first
    answered.set()
    await asked.get()
    assert (bench.pids["first"], bench.said) == (before, [])


async def test_without_a_limit_silence_is_ignored(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.watch_closely(monkeypatch)
    asked = False

    async def answer() -> None:
        nonlocal asked
        asked = True

    await bench.supervise(bench.service("first", READY, answer=answer), hang_seconds=0.0).start()
    bench.changed.clear()
    os.kill(bench.pids["first"], signal.SIGKILL)
    async with asyncio.timeout(60):
        await bench.changed.wait()
    assert not asked
    assert "was killed by SIGKILL" in bench.said[0]


async def test_a_busy_child_gets_more_time_but_not_all_of_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "TICK_SECONDS", 0.25)
    monkeypatch.setattr(supervisor_module, "HUNG_STOP_SECONDS", 0.0)

    async def never() -> None:
        await asyncio.Event().wait()

    busy = READY.replace("time.sleep(600)", "exec('while True: pass')")
    await bench.supervise(bench.service("first", busy, answer=never), hang_seconds=0.5).start()
    async with asyncio.timeout(60):
        while not bench.said:  # noqa: ASYNC110 - a list
            await asyncio.sleep(0.01)
    assert float(bench.said[0].split()[5]) > 1.0
    assert bench.said[0].startswith("first did not answer for")
