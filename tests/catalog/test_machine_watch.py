"""The sample history and its watchers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from services.catalog import machine_watch as module
from services.catalog.machine import Machine, Sample
from services.catalog.machine_watch import CaughtUp, MachineWatch, MachineWatchers, SampleHistory
from services.errors import Overloaded
from tests.catalog.catalog_service import Clock
from tests.catalog.reported_figures import figures, host

PATIENCE = 60.0


def sample(at: float, hosts: int = 0) -> Sample:
    return Sample(at=at, hosts=tuple(host(str(number)) for number in range(hosts)), traffic=(), events=())


def kept(history: SampleHistory) -> list[float]:
    return [history[number].at for number in range(history.begin, history.end)]


def test_samples_are_kept_for_their_time() -> None:
    history = SampleHistory(seconds=10)
    for at in (0, 4, 8, 12):
        history.add(sample(at))
    assert kept(history) == [4, 8, 12]
    assert (history.begin, history.end) == (1, 4)


def test_large_samples_are_kept_for_less() -> None:
    history = SampleHistory(seconds=1000, most=100)
    for at in range(20):
        history.add(sample(at, hosts=30))
    assert kept(history) == [17, 18, 19]
    history.add(sample(20, hosts=500))
    assert kept(history) == [20], "one there always is"


def test_a_clock_that_is_set_back_leaves_no_future() -> None:
    history = SampleHistory(seconds=10)
    for at in (100, 102, 50, 52):
        history.add(sample(at))
    assert kept(history) == [50, 52]


def test_start_of_a_watch() -> None:
    history = SampleHistory(seconds=100)
    assert history.since(50) == 0
    for at in range(0, 20, 2):
        history.add(sample(at))
    assert [history[history.since(seconds)].at for seconds in (0, 1, 2, 5, 1000)] == [18, 18, 16, 14, 0]


async def read(watch: MachineWatch, many: int) -> list[float | str]:
    """Reads `many` events: the time of each sample, or "caught up" for the end of the history."""
    found: list[float | str] = []
    for _ in range(many):
        event = await asyncio.wait_for(watch.next(), PATIENCE)
        assert event is not None
        found.append("caught up" if isinstance(event, CaughtUp) else event.at)
    return found


async def test_a_watch_sends_the_past_then_a_mark_then_new_samples() -> None:
    history = SampleHistory(seconds=100)
    for at in (0, 2, 4):
        history.add(sample(at))
    watch = MachineWatch(history, 3)
    history.add(sample(6))  # added before the first read
    assert await read(watch, 4) == [2, 4, "caught up", 6]
    waiting = asyncio.create_task(watch.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    history.add(sample(8))
    watch.notify()
    later = await asyncio.wait_for(waiting, PATIENCE)
    assert isinstance(later, Sample)
    assert later.at == 8
    watch.close()
    assert await watch.next() is None


async def test_without_samples_the_mark_is_sent_at_once() -> None:
    history = SampleHistory()
    watch = MachineWatch(history, 900)
    assert await read(watch, 1) == ["caught up"]
    history.add(sample(1))
    assert await read(watch, 1) == [1]


async def test_slow_reader_misses_the_oldest() -> None:
    history = SampleHistory(seconds=10)
    history.add(sample(0))
    watch = MachineWatch(history, 0)
    for at in range(2, 100, 2):
        history.add(sample(at))
    assert await read(watch, 3) == ["caught up", 88, 90]


@pytest_asyncio.fixture
async def watchers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MachineWatchers]:
    monkeypatch.setattr(module, "INTERVAL", 0.01)
    watchers = MachineWatchers(Machine(Clock()))
    yield watchers
    await watchers.close()


async def test_a_sample_comes_at_each_interval_also_when_nothing_changes(watchers: MachineWatchers) -> None:
    with watchers.watch(0) as watch:
        times = [time for time in await read(watch, 6) if time != "caught up"]
    assert len(times) == 5


async def test_one_round_that_fails_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.01)
    machine = Machine(Clock())
    machine.take("a", "text", figures(1))
    minutes, machine._windows = machine._windows, {}  # simulates a bug
    watchers = MachineWatchers(machine)
    try:
        with watchers.watch(0) as watch:
            assert await read(watch, 1) == ["caught up"]
            async with asyncio.timeout(PATIENCE):
                while "unexpected error in a sample" not in caplog.text:  # noqa: ASYNC110 - a log has no events
                    await asyncio.sleep(0.01)
            machine._windows = minutes
            assert isinstance(await asyncio.wait_for(watch.next(), PATIENCE), Sample)
    finally:
        await watchers.close()


async def test_watches_are_limited_and_end_with_the_catalog(
    watchers: MachineWatchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers._open, "_most", 1)
    with watchers.watch(0) as watch:
        with pytest.raises(Overloaded, match="1 watches of the machine"), watchers.watch(0):
            pass
        watchers.end_watches()
        assert await asyncio.wait_for(watch.next(), PATIENCE) is None
    with watchers.watch(0) as late:
        assert await late.next() is None
