"""The monitor: reports figures, unloads models that are idle too long or exceed limits, and evicts under pressure."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from services.errors import Internal
from services.residency.memory.monitor import NEIGHBOUR_SECONDS
from services.residency.memory.reservation import NoRoom
from services.settings.modality_settings import MIB
from tests.residency.small_host import RUNTIME, Service, SmallHost, key, model


@pytest.fixture
def host(tmp_path: Path) -> SmallHost:
    return SmallHost(tmp_path)


@pytest_asyncio.fixture
async def text(host: SmallHost) -> AsyncIterator[Service]:
    async with host.service() as service:
        yield service


@pytest_asyncio.fixture
async def image(host: SmallHost) -> AsyncIterator[Service]:
    async with host.service() as service:
        yield service


def metric(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"allm_{name}", labels)


async def test_every_part_is_read_and_reported(host: SmallHost) -> None:
    host.figures.device_total = 1000 * MIB
    async with host.service() as text:
        loaded = await text.use("told-100+300")
        await text.turn()
        assert metric("host_memory_bytes", kind="total") == 1000 * MIB
        assert metric("host_memory_bytes", kind="used") == 100 * MIB
        assert metric("device_memory_bytes", device="cuda:0", kind="used") == 300 * MIB
        assert metric("device_memory_bytes", device="cuda:0", kind="ours") == 300 * MIB
        assert metric("host_memory_bytes", kind="threshold") == 900 * MIB
        assert metric("device_memory_bytes", device="cuda:0", kind="threshold") == pytest.approx(
            0.95 * (metric("device_memory_bytes", device="cuda:0", kind="total") or 0)
        )
        assert metric("worker_memory_bytes", model="told-100+300") == 100 * MIB
        assert metric("worker_device_memory_bytes", model="told-100+300", device="cuda:0") == 300 * MIB
        (row,) = text.monitor.snapshot.residents
        assert (row.idle, row.measured) == (True, {"host": 100 * MIB, "cuda:0": 300 * MIB})
        assert text.monitor.snapshot.host.used == 100 * MIB
        status = text.manager.memory(key("told-100+300"))
        assert status
        assert (status.reserved, status.host, status.requests) == (400 * MIB, 100 * MIB, 0)
        await text.manager.evict(key(loaded.id), "test")
        await text.turn()
        assert metric("worker_memory_bytes", model="told-100+300") is None
        assert metric("worker_device_memory_bytes", model="told-100+300", device="cuda:0") is None
        assert text.monitor.snapshot.residents == ()


async def test_the_ledger_knows_who_is_busy_pinned_and_loading(text: Service, image: Service) -> None:
    async with text.manager.lease(model("a-100"), RUNTIME):
        await text.turn()
        (row,) = await image.ledger.all()
        assert (row.busy, row.loading, row.pinned, row.idle) == (True, False, False, False)
    await text.turn()
    (row,) = await image.ledger.all()
    assert row.idle
    text.manager.pin("a-100", wanted=True)
    await text.turn()
    (row,) = await image.ledger.all()
    assert (row.pinned, row.idle) == (True, False)


async def test_idle_models_are_unloaded(host: SmallHost) -> None:
    async with host.service(idle_seconds=60.0) as text:
        text.manager.pin("pinned-100", wanted=True)
        for name in ("old-100", "busy-100", "pinned-100"):
            await text.use(name)
        async with text.manager.lease(model("busy-100"), RUNTIME):
            host.monotonic.now += 59
            await text.use("late-100")
            host.clock.now += 3600  # a clock that is set says nothing about use
            await text.turn()
            assert text.loaded() == {"old-100", "busy-100", "pinned-100", "late-100"}
            host.monotonic.now += 2
            await text.turn()
            assert text.loaded() == {"busy-100", "pinned-100", "late-100"}
        await text.turn()
        assert text.loaded() == {"busy-100", "pinned-100", "late-100"}, "its time begins when the request ends"
        host.monotonic.now += 61
        await text.turn()
        assert text.loaded() == {"pinned-100"}
        assert metric("model_evictions_total", model="old-100", reason="idle") == 1


def expires(service: Service, name: str) -> int:
    """Returns when a model would be unloaded; 0: not before memory is needed."""
    status = service.manager.memory(key(name))
    assert status
    return status.expires


async def test_a_request_may_keep_an_idle_model_longer(host: SmallHost) -> None:
    async with host.service(idle_seconds=60.0) as text:
        text.manager.idle_seconds = 60.0
        wishes = {"shorter-100": 5.0, "longer-100": 300.0, "forever-100": math.inf, "unneeded-100": 0.0}
        for name, seconds in wishes.items():
            await text.use(name)
            text.manager.keep(key(name), seconds)
        used = host.clock.now
        expected = {"shorter-100": used + 60, "longer-100": used + 300, "forever-100": 0, "unneeded-100": used + 60}
        assert {name: expires(text, name) for name in wishes} == {name: int(when) for name, when in expected.items()}
        host.monotonic.now += 61
        await text.turn()
        assert text.loaded() == {"longer-100", "forever-100"}
        host.monotonic.now += 240
        await text.turn()
        assert text.loaded() == {"forever-100"}
    async with host.service() as text:
        await text.use("m-100")
        text.manager.keep(key("m-100"), 1.0)
        host.monotonic.now += 3600
        await text.turn()
        assert text.loaded() == {"m-100"}, "a wish never shortens a stay"
        assert expires(text, "m-100") == 0
        text.manager.keep(key("m-100"), 0)
        assert expires(text, "m-100") == int(host.clock.now)


async def test_under_pressure_the_least_recently_used_are_evicted(
    text: Service, host: SmallHost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name in ("a-100", "b-100", "c-100", "a-100"):
        await text.use(name)
    await text.turn()
    assert text.loaded() == {"a-100", "b-100", "c-100"}
    host.figures.foreign = 700 * MIB
    await text.turn()
    assert text.loaded() == {"a-100", "c-100"}, "900 of 1000 MiB are not above the threshold"
    host.figures.foreign = 850 * MIB
    await text.turn()
    assert text.loaded() == set()
    for _ in range(3):
        await text.turn()
    host.figures.foreign = 950 * MIB
    for _ in range(3):
        await text.turn()
    assert metric("memory_pressure", place="host") == 1
    host.figures.foreign = 0
    await text.turn()
    assert metric("memory_pressure", place="host") == 0
    reported = [record.message for record in caplog.records if record.name == "services.residency.memory.monitor"]
    assert reported == ["memory is short", "memory is no longer short"] * 3, "one line for each episode"
    assert metric("model_evictions_total", model="b-100", reason="pressure") == 1


async def test_under_pressure_busy_and_pinned_models_stay_and_loads_are_refused(text: Service, host: SmallHost) -> None:
    text.manager.pin("pinned-100", wanted=True)
    await text.use("pinned-100")
    async with text.manager.lease(model("busy-100"), RUNTIME) as busy:
        host.figures.foreign = 750 * MIB
        await text.turn()
        assert (busy.alive, text.loaded()) == (True, {"pinned-100", "busy-100"})
        with pytest.raises(NoRoom, match="are used, which is over 90 %"):
            await text.use("new-1")
        host.figures.foreign = 0
        await text.turn()
        await text.use("new-1")
        assert text.loaded() == {"pinned-100", "busy-100", "new-1"}


async def test_only_models_on_the_overfull_device_are_evicted(host: SmallHost) -> None:
    host.figures.device_total = 1000 * MIB
    async with host.service() as text:
        await text.use("host-300")
        device = await text.use("device-10+500")
        host.figures.on_device[10_000] = 475 * MIB  # another program's memory
        await text.turn()
        assert (text.loaded(), device.alive) == ({"host-300"}, False)


async def test_only_the_service_with_the_oldest_model_unloads(text: Service, image: Service, host: SmallHost) -> None:
    await image.use("image-200")
    await text.use("text-200")
    for service in (text, image):
        await service.monitor.look()
    host.figures.foreign = 600 * MIB
    await text.turn()
    assert text.loaded() == {"text-200"}, "it is the neighbour's turn"
    await image.turn()
    await text.turn()
    assert (text.loaded(), image.loaded()) == ({"text-200"}, set())


async def test_a_peer_that_does_not_unload_is_skipped(text: Service, image: Service, host: SmallHost) -> None:
    await image.use("image-200")
    await text.use("text-200")
    for service in (text, image):
        await service.monitor.look()
    host.figures.foreign = 600 * MIB
    await text.turn()
    assert text.loaded() == {"text-200"}
    host.monotonic.now += NEIGHBOUR_SECONDS
    await text.turn()
    assert text.loaded() == set()


async def test_model_over_its_reservation_is_logged_once_and_counted(
    text: Service, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = await text.use("over-300")
    loaded.take(340 * MIB)
    await text.turn()
    assert [record.message for record in caplog.records] == []
    assert text.manager.memory(key("over-300")).reserved == 340 * MIB  # type: ignore[union-attr]
    loaded.take(500 * MIB)
    for _ in range(3):
        await text.turn()
    assert [record.message for record in caplog.records] == ["a model takes more memory than was reserved for it"]
    assert metric("memory_overruns_total", model="over-300") == 1
    assert sum(row.devices["host"] for row in await text.ledger.all()) == 500 * MIB
    with pytest.raises(NoRoom, match="free: 400 MiB"):
        async with text.manager.lease(model("over-300"), RUNTIME):
            await text.use("new-450")


async def test_a_model_over_its_budget_is_evicted_once_idle(host: SmallHost) -> None:
    async with host.service(model_bytes=400 * MIB) as text:
        async with text.manager.lease(model("over-300"), RUNTIME) as loaded:
            loaded.take(500 * MIB)
            await text.turn()
            assert loaded.alive
        await text.turn()
        assert (loaded.alive, text.loaded()) == (False, set())
        assert metric("model_evictions_total", model="over-300", reason="budget") == 1


async def test_models_over_the_common_budget_evict_idle_ones(host: SmallHost) -> None:
    async with host.service(host_bytes=500 * MIB) as text:
        await text.use("a-200")
        loaded = await text.use("b-200")
        loaded.take(400 * MIB)
        await text.turn()
        assert text.loaded() == {"b-200"}


@pytest.mark.parametrize("anonymous", [False, True])
async def test_gpu_memory_counts_once_even_if_the_driver_names_no_process(host: SmallHost, anonymous: bool) -> None:
    host.figures.device_total = 1000 * MIB
    host.figures.anonymous = anonymous
    async with host.service() as text:
        await text.use("a-10+400")
        await text.use("b-10+400")
        await text.turn()
        assert text.loaded() == {"a-10+400", "b-10+400"}
        assert [row.measured["cuda:0"] for row in await text.ledger.all()] == [400 * MIB] * 2


async def test_the_memory_of_a_dead_worker_is_freed_at_once(text: Service) -> None:
    loaded = await text.use("dead-800")
    loaded.die(Internal("killed by SIGKILL"))
    await text.turn()
    assert await text.ledger.all() == []
    assert text.manager.memory(key("dead-800")) is None
    assert await text.use("dead-800") is not loaded


async def test_a_worker_that_dies_again_and_again_fails_the_model_for_a_while(text: Service, host: SmallHost) -> None:
    for _ in range(3):
        async with text.manager.lease(model("dying-100"), RUNTIME) as loaded:
            loaded.die(Internal("killed by SIGKILL"))
        await text.turn()
    problem = text.manager.problem(key("dying-100"))
    assert problem
    assert problem.message == "dying-100 failed 3 times in a row: killed by SIGKILL"
    begun = len(text.begun)
    with pytest.raises(type(problem), match="3 times in a row"):
        await text.use("dying-100")
    assert len(text.begun) == begun, "it was not tried"
    host.monotonic.now += 1
    await text.use("dying-100")
    assert text.manager.problem(key("dying-100")) is None


async def test_memory_of_a_running_load_does_not_count_twice(text: Service, host: SmallHost) -> None:
    text.gate.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(text.use("slow-400"))
        slot = await text.arrival("slow-400")
        slot.started.append(77)
        host.figures.workers[77] = 350 * MIB
        small = group.create_task(text.use("small-450"))
        await text.arrival("small-450")
        await text.turn()
        assert sum(row.measured.get("host", 0) for row in await text.ledger.all()) == 350 * MIB
        del host.figures.workers[77]
        text.gate.set()
    assert small.done()
    assert text.loaded() == {"slow-400", "small-450"}
