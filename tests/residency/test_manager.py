"""Leases: one load for many requests, failures reported and retried, dead workers replaced, everything closed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from services.errors import AllmError, Internal, ModelInvalid, ModelNotReady
from services.models.descriptor import ModelDescriptor
from services.models.runtimes import RUNTIMES, RuntimeSpec
from services.residency import manager as manager_module
from services.residency.manager import ModelManager
from services.residency.memory.reservation import ResidentKey, resident_key
from services.telemetry import tracing
from services.telemetry.figures import ModelEvents

RUNTIME = RUNTIMES[0]


def model(model_id: str = "m", generation: int = 1) -> ModelDescriptor:
    return ModelDescriptor(
        id=model_id,
        modality="text",
        format="gguf",
        architecture="llama",
        capabilities=frozenset({"chat"}),
        files=(Path("/m.gguf"),),
        primary=Path("/m.gguf"),
        size=1,
        context_tokens=1,
        generation=generation,
    )


def key(model_id: str = "m", generation: int = 1) -> ResidentKey:
    return resident_key(model(model_id, generation), RUNTIME)


class Loaded:
    """A resident that only records its calls."""

    def __init__(self, model_id: str) -> None:
        self.id = model_id
        self.alive = True
        self.closed = 0
        self.pid = 0
        self.problem: AllmError | None = None
        self.peak_memory = 0

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.alive = False
        self.closed += 1


class Loader:
    """A loader that waits until the test opens the gate, and raises `failure` if one is set."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.failure: Exception | None = None
        self.begun: list[str] = []
        self.made: list[Loaded] = []
        self.cancelled = 0

    async def __call__(self, descriptor: ModelDescriptor, runtime: RuntimeSpec) -> Loaded:
        assert runtime is RUNTIME
        self.begun.append(descriptor.id)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failure:
            raise self.failure
        self.made.append(Loaded(descriptor.id))
        return self.made[-1]


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
def manager(loader: Loader) -> ModelManager[Loaded]:
    return ModelManager(loader)


async def use(manager: ModelManager[Loaded], model_id: str = "m") -> Loaded:
    async with manager.lease(model(model_id), RUNTIME) as loaded:
        return loaded


async def turns() -> None:
    """Runs every task until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_concurrent_requests_load_once(manager: ModelManager[Loaded], loader: Loader) -> None:
    asking = [asyncio.create_task(use(manager)) for _ in range(10)]
    await turns()
    assert loader.begun == ["m"]
    assert manager.resident(key()) is None
    loader.gate.set()
    assert set(await asyncio.gather(*asking)) == {loader.made[0]}
    assert manager.resident(key())
    assert await use(manager) is loader.made[0]
    assert loader.begun == ["m"]


async def test_models_load_in_parallel(manager: ModelManager[Loaded], loader: Loader) -> None:
    asking = [asyncio.create_task(use(manager, name)) for name in ("a", "b")]
    await turns()
    assert loader.begun == ["a", "b"]
    loader.gate.set()
    a, b = await asyncio.gather(*asking)
    assert (a.id, b.id) == ("a", "b")
    assert dict(manager.residents()) == {"a": a, "b": b}


async def test_failed_load_is_reported_to_all_and_retried(manager: ModelManager[Loaded], loader: Loader) -> None:
    loader.failure = ModelInvalid("/m.gguf is broken")
    asking = [asyncio.create_task(use(manager)) for _ in range(3)]
    await turns()
    loader.gate.set()
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert [str(result) for result in results] == ["/m.gguf is broken"] * 3
    assert loader.begun == ["m"]
    assert manager.resident(key()) is None
    assert list(manager.residents()) == []
    loader.failure = None
    assert await use(manager) is loader.made[0]
    assert loader.begun == ["m", "m"]


async def test_after_a_failed_load_concurrent_retries_load_once(manager: ModelManager[Loaded], loader: Loader) -> None:
    loader.failure = ModelInvalid("broken")
    loader.gate.set()
    with pytest.raises(ModelInvalid):
        await use(manager)
    loader.failure = None
    assert len(set(await asyncio.gather(*(use(manager) for _ in range(5))))) == 1
    assert loader.begun == ["m", "m"]


async def test_a_dead_resident_is_closed_and_replaced_once(manager: ModelManager[Loaded], loader: Loader) -> None:
    loader.gate.set()
    first = await use(manager)
    first.alive = False
    assert manager.resident(key()) is None
    assert list(manager.residents()) == []
    users = await asyncio.gather(*(use(manager) for _ in range(5)))
    assert set(users) == {loader.made[1]}
    assert first.closed == 1
    assert len(loader.made) == 2


async def test_a_cancelled_wait_does_not_stop_the_load_for_others(
    manager: ModelManager[Loaded], loader: Loader
) -> None:
    impatient, patient = asyncio.create_task(use(manager)), asyncio.create_task(use(manager))
    await turns()
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    loader.gate.set()
    assert await patient is loader.made[0]
    assert (len(loader.begun), loader.cancelled) == (1, 0)


async def test_a_load_continues_when_all_waiting_callers_left(manager: ModelManager[Loaded], loader: Loader) -> None:
    asking = [asyncio.create_task(use(manager)) for _ in range(2)]
    await turns()
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    loader.gate.set()
    await turns()
    assert manager.resident(key())
    assert await use(manager) is loader.made[0]


async def test_failure_without_waiting_callers_is_not_logged(manager: ModelManager[Loaded], loader: Loader) -> None:
    """asyncio would warn of a task whose exception was never retrieved; warnings fail this test."""
    asking = asyncio.create_task(use(manager))
    await turns()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    loader.failure = ModelInvalid("broken")
    loader.gate.set()
    await turns()
    loader.failure = None
    assert await use(manager) is loader.made[0]


async def test_an_error_inside_a_lease_leaves_the_model_loaded(manager: ModelManager[Loaded], loader: Loader) -> None:
    loader.gate.set()
    with pytest.raises(RuntimeError):
        async with manager.lease(model(), RUNTIME):
            raise RuntimeError
    assert manager.resident(key())
    assert loader.made[0].closed == 0


async def test_the_last_problem_is_remembered_until_a_load_succeeds(
    manager: ModelManager[Loaded], loader: Loader
) -> None:
    changes = []
    manager.on_change = lambda: changes.append(manager.problem(key()))
    assert manager.problem(key()) is None
    loader.gate.set()
    loader.failure = ModelInvalid("broken")
    with pytest.raises(ModelInvalid):
        await use(manager)
    await turns()
    assert str(manager.problem(key())) == "broken"
    loader.failure = None
    await use(manager)
    await turns()
    assert manager.problem(key()) is None
    assert [str(change or "") for change in changes] == ["broken", ""]


async def test_generations_are_residents_of_their_own(manager: ModelManager[Loaded], loader: Loader) -> None:
    loader.gate.set()
    old = await use(manager)
    async with manager.lease(model(generation=2), RUNTIME) as new:
        assert new is not old
        assert manager.resident(key()) is old
        assert manager.resident(key(generation=2)) is new
    await manager.retire("m", keep=key(generation=2))
    assert (old.closed, new.closed) == (1, 0)
    assert manager.resident(key()) is None
    assert await use(manager, "m") is not old


async def test_retired_generation_lives_until_its_last_lease_ends(
    manager: ModelManager[Loaded], loader: Loader
) -> None:
    loader.gate.set()
    async with manager.lease(model(), RUNTIME) as first:
        async with manager.lease(model(), RUNTIME):
            retiring = asyncio.create_task(manager.retire("m"))
            await turns()
            assert manager.resident(key()) is None, "nobody new gets it"
        await turns()
        assert (first.closed, retiring.done()) == (0, False)
        assert await use(manager) is not first, "who asks meanwhile gets a new one"
    await retiring
    assert first.closed == 1


async def test_a_cancelled_wait_does_not_delay_retirement(manager: ModelManager[Loaded], loader: Loader) -> None:
    asking = asyncio.create_task(use(manager))
    await turns()
    retiring = asyncio.create_task(manager.retire("m"))
    await turns()
    assert not retiring.done()
    asking.cancel()
    async with asyncio.timeout(30):
        await retiring
    assert loader.cancelled == 1
    assert loader.made == []


async def test_only_the_named_model_is_retired(manager: ModelManager[Loaded], loader: Loader) -> None:
    loader.gate.set()
    a, b = await use(manager, "a"), await use(manager, "b")
    await manager.retire("a")
    await manager.retire("never-there")
    assert (a.closed, b.closed) == (1, 0)


async def test_close_closes_all_and_forgets_them(manager: ModelManager[Loaded], loader: Loader) -> None:
    loader.gate.set()
    a, b = await use(manager, "a"), await use(manager, "b")
    await manager.close()
    assert (a.closed, b.closed) == (1, 1)
    assert list(manager.residents()) == []
    await manager.close()
    assert (a.closed, b.closed) == (1, 1)


async def test_close_stops_a_load_and_all_who_wait_for_it(manager: ModelManager[Loaded], loader: Loader) -> None:
    loader.gate.set()
    ready = await use(manager, "ready")
    loader.gate.clear()
    asking = [asyncio.create_task(use(manager, "late")) for _ in range(2)]
    await turns()
    async with asyncio.timeout(30):
        await manager.close()
        results = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(result, BaseException) for result in results)
    assert loader.cancelled == 1
    assert ready.closed == 1
    assert loader.made == [ready]


async def test_one_that_fails_to_close_does_not_keep_the_others_open(
    manager: ModelManager[Loaded], loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader.gate.set()
    bad, good = await use(manager, "bad"), await use(manager, "good")

    async def refuse() -> None:
        raise OSError("no")

    monkeypatch.setattr(bad, "close", refuse)
    await manager.close()
    assert good.closed == 1


async def test_caller_of_a_loading_model_counts_as_waiting(manager: ModelManager[Loaded], loader: Loader) -> None:
    def waiting() -> float | None:
        return REGISTRY.get_sample_value("allm_requests_waiting", {"model": "m"})

    users = [asyncio.create_task(use(manager)) for _ in range(3)]
    await turns()
    assert waiting() == 3
    users[0].cancel()
    await turns()
    assert waiting() == 2
    loader.gate.set()
    await asyncio.gather(*users, return_exceptions=True)
    assert waiting() == 0


async def test_a_worker_that_comes_in_place_of_a_dead_one_is_a_restart(
    manager: ModelManager[Loaded], loader: Loader
) -> None:
    def restarts() -> float:
        return REGISTRY.get_sample_value("allm_worker_restarts_total", {"model": "m"}) or 0.0

    before = restarts()
    loader.gate.set()
    first = await use(manager)
    await manager.evict(key(), "idle")
    again = await use(manager)
    assert again is not first
    assert restarts() == before, "what was unloaded has not died"
    again.alive = False
    await use(manager)
    await use(manager)
    assert restarts() == before + 1


async def test_loads_that_fail_are_counted_from_zero(manager: ModelManager[Loaded], loader: Loader) -> None:
    def failures(model_id: str, code: str) -> float | None:
        labels = {"model": model_id, "code": code}
        return REGISTRY.get_sample_value("allm_model_load_failures_total", labels)

    loader.gate.set()
    await use(manager, "counted")
    assert failures("counted", "MODEL_INVALID") == failures("counted", "INTERNAL") == 0
    loader.failure = ModelInvalid("broken")
    with pytest.raises(ModelInvalid):
        await use(manager, "broken")
    assert failures("broken", "MODEL_INVALID") == 1


async def test_loads_are_timed_by_model(manager: ModelManager[Loaded], loader: Loader) -> None:
    loader.gate.set()
    await use(manager, "timed-load")
    assert REGISTRY.get_sample_value("allm_model_load_seconds_count", {"model": "timed-load"}) == 1


async def test_a_model_retired_while_its_dead_resident_is_closed_does_not_come_back(
    manager: ModelManager[Loaded], loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader.gate.set()
    dead = await use(manager)
    dead.alive = False
    slow = asyncio.Event()
    monkeypatch.setattr(dead, "close", slow.wait)
    asking = asyncio.create_task(use(manager))
    await turns()
    retiring = asyncio.create_task(manager.retire("m"))
    await turns()
    slow.set()
    await asyncio.gather(asking, retiring)
    assert manager.resident(key()) is None
    assert [loaded for loaded in loader.made if loaded.alive] == [], "nobody is left to give it up"


async def test_caller_of_a_stopped_load_gets_an_error(manager: ModelManager[Loaded], loader: Loader) -> None:
    """The waiter gets an error, not a cancellation, because nobody cancelled it."""
    asking = asyncio.create_task(use(manager))
    await turns()
    await manager.close()
    with pytest.raises(ModelNotReady, match="being unloaded"):
        await asking


async def test_unexpected_load_failure_is_reported_and_remembered(
    manager: ModelManager[Loaded], loader: Loader
) -> None:
    loader.gate.set()
    loader.failure = BlockingIOError(11, "no more processes")
    with pytest.raises(Internal, match="no more processes"):
        await use(manager)
    assert "no more processes" in str(manager.problem(key()))
    loader.failure = None
    assert await use(manager) is loader.made[0]


async def test_idle_model_can_be_evicted_and_is_loaded_again_on_demand(
    manager: ModelManager[Loaded], loader: Loader
) -> None:
    loader.gate.set()
    first = await use(manager)
    changes = []
    manager.on_change = lambda: changes.append(manager.resident(key()))
    assert await manager.evict(key(), "gone") == 0, "nothing was reserved for it"
    assert (first.closed, manager.resident(key()), changes) == (1, None, [None])
    assert REGISTRY.get_sample_value("allm_model_evictions_total", {"model": "m", "reason": "gone"}) == 1
    assert await use(manager) is not first


async def test_model_events_have_a_reason(
    manager: ModelManager[Loaded], loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = ModelEvents()
    monkeypatch.setattr(manager_module, "EVENTS", events)
    loader.gate.set()
    await use(manager, "told")
    await manager.evict(key("told"), "test")
    await manager.evict(key("told"), "again")
    await use(manager, "told")
    await manager.retire("told")
    await manager.retire("told")
    loader.failure = ModelInvalid("broken")
    with pytest.raises(ModelInvalid):
        await use(manager, "n")
    assert [(event.kind, event.model, event.reason) for _, event in events.after(0)] == [
        ("loaded", "told", ""),
        ("evicted", "told", "test"),
        ("loaded", "told", ""),
        ("unloaded", "told", ""),
        ("load_failed", "n", "MODEL_INVALID"),
    ]


async def test_used_loading_pinned_or_missing_models_are_not_evicted(
    manager: ModelManager[Loaded], loader: Loader
) -> None:
    asking = asyncio.create_task(use(manager))
    await turns()
    assert await manager.evict(key(), "test") is None, "loading"
    loader.gate.set()
    loaded = await asking
    async with manager.lease(model(), RUNTIME):
        assert await manager.evict(key(), "test") is None, "in use"
    manager.pin("m", wanted=True)
    assert await manager.evict(key(), "test") is None, "pinned"
    assert await manager.evict(key(generation=2), "test") is None, "not there"
    assert loaded.closed == 0
    manager.pin("m", wanted=False)
    loaded.alive = False
    assert await manager.evict(key(), "test") is None, "dead: it is swept, and its reservation with it"


async def test_request_for_a_model_being_evicted_waits_for_its_memory(
    manager: ModelManager[Loaded], loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader.gate.set()
    first = await use(manager)
    gone = asyncio.Event()
    monkeypatch.setattr(first, "close", gone.wait)
    evicting = asyncio.create_task(manager.evict(key(), "test"))
    await turns()
    asking = asyncio.create_task(use(manager))
    await turns()
    assert loader.begun == ["m"], "both together may not fit"
    evicting.cancel()  # the eviction continues without its caller
    await asyncio.gather(evicting, return_exceptions=True)
    gone.set()
    assert await asking is not first
    assert loader.begun == ["m", "m"]


async def test_a_model_that_keeps_failing_is_not_loaded_until_reset(
    manager: ModelManager[Loaded], loader: Loader
) -> None:
    loader.gate.set()
    loader.failure = ModelInvalid("broken")
    for _ in range(5):
        with pytest.raises(ModelInvalid, match="broken"):
            await use(manager)
    assert len(loader.begun) == 3, "the last ones were told at once"
    loader.failure = None
    with pytest.raises(ModelInvalid, match="broken"):
        await use(manager)
    manager.forgive("m")
    assert await use(manager) is loader.made[0]


async def test_preloading_does_not_reset_the_count_of_worker_deaths(
    manager: ModelManager[Loaded], loader: Loader
) -> None:
    loader.gate.set()
    for _ in range(3):
        await manager.load(model(), RUNTIME)
        loader.made[-1].alive = False
        manager.sweep()
    with pytest.raises(ModelNotReady, match="3 times in a row"):
        await manager.load(model(), RUNTIME)
    await turns()
    assert [loaded.closed for loaded in loader.made] == [1, 1, 1]


class SpanNotes:
    """Stands for a tracer and for its only span, and notes the calls."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, bool]] = []
        self.attributes: dict[str, object] = {}

    def root(self, name: str, started: float) -> SpanNotes:
        assert name == "load"
        return self

    def set(self, attributes: dict[str, object]) -> None:
        self.attributes |= attributes

    def end(self, ended: float, problem: str = "", fault: bool = False) -> None:
        self.ended.append((problem, fault))


async def test_a_load_is_one_span_that_ends_with_it(
    manager: ModelManager[Loaded], loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = SpanNotes()
    monkeypatch.setattr(tracing, "tracer", notes)
    loader.gate.set()
    await asyncio.gather(*(use(manager) for _ in range(3)))
    assert notes.attributes == {"gen_ai.request.model": "m", "allm.runtime": RUNTIME.name}
    assert notes.ended == [("", False)]


async def test_a_load_that_fails_or_is_stopped_says_so_in_its_span(
    manager: ModelManager[Loaded], loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = SpanNotes()
    monkeypatch.setattr(tracing, "tracer", notes)
    loader.failure = Internal("no")
    loader.gate.set()
    with pytest.raises(Internal):
        await use(manager)
    assert notes.ended == [("INTERNAL", True)]
    loader.gate.clear()
    waiting = asyncio.create_task(use(manager))
    await turns()
    await manager.close()
    with pytest.raises(ModelNotReady):
        await waiting
    assert notes.ended[1:] == [("CANCELLED", False)]
