"""Admission: loads models that fit, evicts idle ones if that makes room, and refuses the rest with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from services.errors import Internal, ModelInvalid, OutOfMemory
from services.residency.memory.admission import Admission
from services.residency.memory.reservation import NeverFits, NoRoom, TooManyModels
from services.settings.modality_settings import MIB
from tests.residency.small_host import RUNTIME, Service, SmallHost, key, model

PATIENT = 60.0  # seconds; no test waits that long


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


async def reserved(service: Service) -> dict[str, int]:
    """Returns the ledger's reservations on the host, in MiB."""
    return {row.key.model_id: sum(row.devices.values()) // MIB for row in await service.ledger.all()}


def evictions(model_id: str, reason: str) -> float:
    return REGISTRY.get_sample_value("allm_model_evictions_total", {"model": model_id, "reason": reason}) or 0.0


async def until(condition: Callable[[], object]) -> None:
    """Waits for a condition; fails after a while."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (of many kinds, they have no events)
            await asyncio.sleep(0.01)


async def test_fitting_model_is_loaded_and_recorded(text: Service) -> None:
    await text.use("a-300")
    await text.use("b-500")
    assert text.loaded() == {"a-300", "b-500"}
    assert await reserved(text) == {"a-300": 300, "b-500": 500}


async def test_nothing_is_admitted_to_a_gpu_without_figures(host: SmallHost, text: Service) -> None:
    with pytest.raises(NeverFits, match=r"and 1.0 MiB on cuda:0 .*; the memory of cuda:0 cannot be read: "):
        await text.use("gpu-100+1")
    host.figures.device_total = 1000 * MIB
    await text.use("gpu-100+1")
    assert text.loaded() == {"gpu-100+1"}


async def test_without_live_figures_the_reservations_count(host: SmallHost, text: Service) -> None:
    host.figures.device_total, host.figures.live = 1000 * MIB, False
    await text.use("a-10+500")
    await text.use("b-10+300")
    await text.monitor.look()
    assert [device.used for device in text.monitor.snapshot.devices] == [800 * MIB]
    await text.use("c-10+500")
    assert text.loaded() == {"b-10+300", "c-10+500"}, "the least recently used one went"
    with pytest.raises(NeverFits, match=r"of cuda:0 950 MiB of .* may be used"):
        await text.use("d-10+951")


async def test_the_least_recently_used_are_evicted_only_as_needed(text: Service) -> None:
    for name in ("a-200", "b-200", "c-200", "a-200"):
        await text.use(name)
    await text.use("d-400")
    assert text.loaded() == {"a-200", "c-200", "d-400"}
    assert evictions("b-200", "admission") == 1
    assert await reserved(text) == {"a-200": 200, "c-200": 200, "d-400": 400}


async def test_a_model_that_nobody_needs_goes_first(text: Service, image: Service) -> None:
    """A request's keep_alive of 0 counts until the next request."""
    for name in ("a-200", "b-200", "c-200"):
        await text.use(name)
    for name in ("b-200", "c-200"):
        text.manager.keep(key(name), 0)
    text.manager.keep(key("gone-1"), 0)
    await text.use("c-200")
    await text.turn()
    await image.use("d-400")
    assert text.loaded() == {"a-200", "c-200"}


async def test_a_model_is_not_evicted_in_vain(text: Service) -> None:
    """The oldest one is too small to help once the larger one has to go as well."""
    for name in ("small-100", "large-500", "late-200"):
        await text.use(name)
    await text.use("new-500")
    assert text.loaded() == {"small-100", "late-200", "new-500"}


async def test_used_model_is_never_evicted(text: Service) -> None:
    async with text.manager.lease(model("busy-600"), RUNTIME) as busy:
        await text.use("idle-100")
        with pytest.raises(NoRoom) as refused:
            await text.use("new-500")
        assert busy.alive
    assert refused.value.message == (
        "new-500 needs 500 MiB on the host (weights 500 MiB); free: 200 MiB of the host; "
        "could be unloaded: idle-100 (100 MiB); in use: busy-600 (600 MiB)"
    )
    assert refused.value.headers() == {"x-should-retry": "false"}
    assert text.loaded() == {"busy-600", "idle-100"}, "nothing goes where that does not suffice"
    await text.use("new-500")
    assert text.loaded() == {"idle-100", "new-500"}, "it is idle now; the other one need not go"


async def test_pinned_model_is_never_evicted(text: Service) -> None:
    text.manager.pin("pinned-600", wanted=True)
    await text.use("pinned-600")
    with pytest.raises(NoRoom, match="to stay in memory: pinned-600"):
        await text.use("new-500")
    text.manager.pin("pinned-600", wanted=False)
    await text.use("new-500")
    assert text.loaded() == {"new-500"}


async def test_a_load_waits_for_one_that_is_in_use(host: SmallHost) -> None:
    async with host.service(patience=PATIENT) as text:
        async with text.manager.lease(model("busy-600"), RUNTIME):
            waiting = asyncio.create_task(text.use("new-500"))
            small = await text.use("small-100")  # does not wait for the other load
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting
        assert (small.alive, text.loaded()) == (True, {"small-100", "new-500"})


async def test_a_load_does_not_wait_where_that_cannot_help(host: SmallHost) -> None:
    async with host.service(patience=PATIENT) as text:
        text.manager.pin("pinned-600", wanted=True)
        await text.use("pinned-600")
        async with asyncio.timeout(30):
            with pytest.raises(NoRoom):
                await text.use("new-500")


async def test_load_that_never_fits_is_refused_despite_idle_models(host: SmallHost) -> None:
    async with host.service() as text, host.service(model_bytes=350 * MIB, host_bytes=300 * MIB) as small:
        await text.use("a-300")
        with pytest.raises(NeverFits, match=r"of the host 900 MiB of 1.0 GiB may be used \(ALLM_MEMORY_THRESHOLD\)"):
            await text.use("big-901")
        assert text.loaded() == {"a-300"}
        with pytest.raises(NeverFits, match=r"one model may take 350 MiB \(ALLM_MODEL_MEMORY_BYTES\)"):
            await small.use("big-351")
        with pytest.raises(NeverFits, match=r"all models may take 300 MiB \(ALLM_HOST_MEMORY_BYTES\)"):
            await small.use("big-350")
        assert isinstance(small.manager.problem(key("big-350")), OutOfMemory)


async def test_a_temporary_refusal_is_no_failure_of_the_model(text: Service) -> None:
    async with text.manager.lease(model("busy-600"), RUNTIME):
        for _ in range(5):
            with pytest.raises(NoRoom):
                await text.use("new-500")
    assert text.manager.problem(key("new-500")) is None
    assert isinstance(text.manager.refusal(key("new-500")), NoRoom)
    await text.use("new-500")
    assert text.manager.refusal(key("new-500")) is None, "and nobody had to wait for a back-off"


async def test_memory_used_by_others_is_not_free(text: Service, host: SmallHost) -> None:
    host.figures.foreign = 500 * MIB
    await text.use("a-300")
    with pytest.raises(NoRoom, match="free: 100 MiB of the host"):
        async with text.manager.lease(model("a-300"), RUNTIME):
            await text.use("b-300")


async def test_budgets_of_host_and_device_bind_all_models_together(host: SmallHost) -> None:
    host.figures.device_total = 1000 * MIB
    async with host.service(host_bytes=400 * MIB, device_bytes=300 * MIB) as text:
        await text.use("a-100+200")
        await text.use("b-100+200")
        assert text.loaded() == {"b-100+200"}, "the device takes one"
        await text.use("c-300")
        assert text.loaded() == {"b-100+200", "c-300"}
        await text.use("d-300")
        assert text.loaded() == {"b-100+200", "d-300"} or text.loaded() == {"d-300"}


async def test_only_models_on_the_full_device_are_evicted(host: SmallHost) -> None:
    host.figures.device_total = 1000 * MIB
    async with host.service() as text:
        for name in ("host-300", "device-10+500"):
            await text.use(name)
        await text.use("new-10+500")
        assert text.loaded() == {"host-300", "new-10+500"}


async def test_a_failed_load_leaves_nothing_and_the_next_works(text: Service) -> None:
    for failure in (ModelInvalid("broken"), OutOfMemory("the worker says so"), OSError("no more processes")):
        text.failures.append(failure)
        with pytest.raises((ModelInvalid, OutOfMemory, Internal)):
            await text.use("a-800")
        assert await reserved(text) == {}
        await text.use("b-800")
        assert await reserved(text) == {"b-800": 800}
        await text.manager.retire("b-800")


async def test_a_load_that_is_stopped_gives_its_reservation_back(text: Service) -> None:
    text.gate.clear()
    asking = asyncio.create_task(text.use("a-800"))
    await until(lambda: text.begun)
    assert await reserved(text) == {"a-800": 800}
    retiring = asyncio.create_task(text.manager.retire("a-800"))
    asking.cancel()
    await asyncio.gather(asking, retiring, return_exceptions=True)
    assert await reserved(text) == {}
    text.gate.set()
    await text.use("b-800")


async def test_a_load_cancelled_while_waiting_for_room_leaves_nothing(host: SmallHost) -> None:
    async with host.service(patience=PATIENT) as text:
        async with text.manager.lease(model("busy-600"), RUNTIME):
            asking = asyncio.create_task(text.use("new-500"))
            await until(lambda: text.manager.slot(key("new-500")))
            retiring = asyncio.create_task(text.manager.retire("new-500"))
            asking.cancel()
            await asyncio.gather(asking, retiring, return_exceptions=True)
        assert await reserved(text) == {"busy-600": 600}
        await text.use("new-500")
        assert text.loaded() == {"new-500"}


async def test_two_loads_at_once_where_one_fits(text: Service) -> None:
    """The second load is refused, or it evicts the first one: both are never in memory."""
    results = await asyncio.gather(text.use("a-600"), text.use("b-600"), return_exceptions=True)
    assert len(text.loaded()) == 1
    assert all(isinstance(one, NoRoom) for one in results if isinstance(one, BaseException))
    assert sum((await reserved(text)).values()) == 600


async def test_loads_are_not_serialised(text: Service) -> None:
    text.gate.clear()
    asking = [asyncio.create_task(text.use(name)) for name in ("a-300", "b-300")]
    await until(lambda: len(text.begun) == 2)
    assert await reserved(text) == {"a-300": 300, "b-300": 300}
    text.gate.set()
    await asyncio.gather(*asking)


async def test_a_peers_idle_model_is_evicted(text: Service, image: Service) -> None:
    drawn = await image.use("image-600")
    await image.monitor.look()  # reports to the ledger that the model is idle
    await text.use("text-600")
    assert (text.loaded(), image.loaded(), drawn.alive) == ({"text-600"}, set(), False)
    assert evictions("image-600", "peer") == 1
    assert await reserved(text) == {"text-600": 600}


async def test_a_peer_that_became_busy_keeps_its_model(text: Service, image: Service) -> None:
    await image.use("image-600")
    await image.monitor.look()
    async with image.manager.lease(model("image-600"), RUNTIME) as drawing:  # the ledger does not know it yet
        with pytest.raises(NoRoom, match="in use: image-600"):
            await text.use("text-600")
        assert drawing.alive


async def test_a_silent_peer_is_skipped(text: Service, host: SmallHost, tmp_path: Path) -> None:
    async with host.service() as image:
        await image.use("old-300")
        await image.monitor.look()
        await text.use("late-300")
        (tmp_path / "s2.sock").unlink()
        with pytest.raises(NoRoom):
            await text.use("new-800")
        assert (text.loaded(), image.loaded()) == ({"late-300"}, {"old-300"})
        await text.use("new-500")
        assert text.loaded() == {"new-500"}, "another one that was idle sufficed"


async def test_no_more_models_than_are_allowed(host: SmallHost) -> None:
    async with host.service(max_models=2) as text:
        for name in ("a-100", "b-100", "a-100", "c-100"):
            await text.use(name)
        assert text.loaded() == {"a-100", "c-100"}
        assert evictions("b-100", "max_models") == 1
        async with text.manager.lease(model("a-100"), RUNTIME), text.manager.lease(model("c-100"), RUNTIME):
            with pytest.raises(TooManyModels, match="ALLM_MAX_LOADED_MODELS") as refused:
                await text.use("d-100")
        assert refused.value.retry_after
        assert text.loaded() == {"a-100", "c-100"}


async def test_another_generation_of_the_same_model_is_not_evicted_for_the_new_one(text: Service) -> None:
    """The swap decides when the old generation goes, because it knows which replicas serve meanwhile."""
    old = await text.use("m-600", generation=1)
    with pytest.raises(NoRoom, match="to stay in memory: m-600"):
        await text.use("m-600", generation=2)
    assert old.alive
    await text.manager.retire("m-600", keep=key("m-600", 2))
    assert (await text.use("m-600", generation=2)).alive
    assert not old.alive


async def test_unreadable_files_are_reported_by_the_load(text: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("m.gguf is gone")

    admission: Admission = text.admission
    monkeypatch.setattr(admission, "_needed", broken)
    text.failures.append(ModelInvalid("m.gguf is gone"))
    with pytest.raises(ModelInvalid, match=r"m\.gguf is gone"):
        await text.use("a-300")
    assert await reserved(text) == {}
