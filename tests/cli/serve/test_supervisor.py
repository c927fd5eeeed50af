"""The supervisor with small programs as children."""

from __future__ import annotations

import asyncio
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

READY = "import pathlib, time; pathlib.Path(__import__('sys').argv[1]).touch(); time.sleep(600)"
FAILS = "import sys; print('cannot: no luck', file=sys.stderr); sys.exit(3)"
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

    def service(self, name: str, code: str, ready: Callable[[], Awaitable[None]] | None = None) -> Service:
        flag = self.folder / f"{name}.ready"

        async def wait_ready() -> None:
            while not flag.exists():  # noqa: ASYNC110 - a file has no events
                await asyncio.sleep(0.01)
            flag.unlink()
            self.events.append(f"{name} ready")

        async def drain() -> None:
            self.events.append(f"{name} drained")

        program = Program(name, (sys.executable, "-c", code, str(flag)), dict(os.environ))
        return Service(program, ready or wait_ready, drain)

    def on_change(self, pids: dict[str, int]) -> None:
        self.pids = dict(pids)
        self.changed.set()

    def supervise(self, *services: Service) -> Supervisor:
        self.supervisor = Supervisor(services, self.folder / "logs", self.said.append, self.on_change)
        return self.supervisor


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


async def test_what_needs_nothing_of_each_other_starts_and_stops_together(bench: Bench) -> None:
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
    right = replace(bench.service("right", READY, meeting("right")), beside=True)
    supervisor = bench.supervise(first, left, right, bench.service("last", READY))
    await supervisor.start()
    assert (bench.events[0], bench.events[-1]) == ("first ready", "last ready")
    assert set(bench.events[1:-1]) == {"left ready", "right ready"}
    await supervisor.stop()
    assert (bench.events[4], bench.events[-1]) == ("last drained", "first drained")
    assert set(bench.events[5:-1]) == {"left drained", "right drained"}


async def test_one_that_fails_is_told_of_though_others_never_get_ready(bench: Bench) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    failing = replace(bench.service("failing", FAILS), beside=True)
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
    assert bench.said[1] == "first is back"


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


async def test_what_a_child_writes_is_logged_line_by_line(bench: Bench) -> None:
    code = f"import sys\nprint('out' * 50_000)\nprint('err', end='', file=sys.stderr)\n{READY}"
    supervisor = bench.supervise(bench.service("first", code))
    await supervisor.start()
    await supervisor.stop()
    lines = (bench.folder / "logs" / "first.log").read_text().splitlines()
    assert sorted(lines) == ["err", "out" * 50_000]


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
