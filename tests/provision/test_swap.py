"""Swaps: a new generation loads next to the old one, or after it if both do not fit. Loading without a request."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.errors import AllmError, Internal, ModelNotReady
from services.residency.memory.reservation import NeverFits, NoRoom
from services.residency.slot import Slot
from tests.provision.desired_models import local_manifest, registration
from tests.provision.test_follower import Service


class Narrow:
    """A gate that admits one model at a time and raises `refusal` for others."""

    def __init__(self) -> None:
        self.inside: set[Slot[Any]] = set()
        self.refusal: AllmError = NoRoom("m needs 600 MiB; free: 400 MiB")

    async def enter(self, slot: Slot[Any]) -> None:
        if self.inside:
            raise self.refusal
        self.inside.add(slot)

    async def leave(self, slot: Slot[Any]) -> None:
        self.inside.discard(slot)


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    service = Service(tmp_path / "home", "wanted", "alias")
    yield service
    await service.model_set.close()
    await service.manager.close()


@pytest.fixture
def gate(service: Service) -> Narrow:
    service.manager.gate = gate = Narrow()
    return gate


def update(service: Service, folder: Path) -> None:
    service.model_set.apply(registration(local_manifest(folder), generation=2))


async def first(service: Service, folder: Path) -> None:
    """Loads the first generation."""
    service.model_set.apply(registration(local_manifest(folder)))
    await service.until_state("ready")
    assert await service.use() == 1


async def test_requests_never_wait_if_both_fit(service: Service, tmp_path: Path) -> None:
    await first(service, tmp_path / "a")
    service.loader.gate.clear()
    update(service, tmp_path / "b")
    await service.until(lambda: len(service.manager.slots()) == 2)
    assert await service.use() == 1
    service.loader.gate.set()
    await service.until(lambda: service.status().generation == 2)
    assert await service.use() == 2
    await service.until(lambda: len(service.loader.alive) == 1)


async def test_old_generation_ends_first_with_a_reason_if_both_do_not_fit(
    service: Service, gate: Narrow, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await first(service, tmp_path / "a")
    serving = service.store.serveable(service.store.get("m"))
    async with service.manager.lease(serving.descriptor, serving.runtime) as old:
        update(service, tmp_path / "b")
        status = await service.until_state("pending")
        assert "changing to generation 2; the old one is unloaded first" in status.reason
        assert "free: 400 MiB" in status.reason
        with pytest.raises(ModelNotReady, match="both do not fit") as caught:
            await service.use()
        assert caught.value.retry_after
        assert (old.alive, len(service.loader.made)) == (True, 1), "its running request ends in peace"
    status = await service.until_state("loaded")
    assert (status.generation, old.alive, len(gate.inside)) == (2, False, 1)
    assert await service.use() == 2
    told_of = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "both generations do not fit: the old one ends first" in [record.message for record in told_of]


async def test_another_update_meanwhile_does_not_end_what_still_runs(
    service: Service, gate: Narrow, tmp_path: Path
) -> None:
    await first(service, tmp_path / "a")
    serving = service.store.serveable(service.store.get("m"))
    async with service.manager.lease(serving.descriptor, serving.runtime) as old:
        update(service, tmp_path / "b")
        await service.until_state("pending")
        service.model_set.apply(registration(local_manifest(tmp_path / "c"), generation=3))
        await service.until(lambda: (following := service.status().next) and following.generation == 3)
        assert old.alive
    await service.until(lambda: service.status().generation == 3)
    assert await service.use() == 3
    await service.until(lambda: len(gate.inside) == 1)
    assert not old.alive


async def test_a_failed_new_generation_restores_the_old_one(service: Service, gate: Narrow, tmp_path: Path) -> None:
    await first(service, tmp_path / "a")
    service.loader.failure = Internal("the new one is broken")
    update(service, tmp_path / "b")
    await service.until(lambda: (following := service.status().next) and following.state == "failed")
    status = service.status()
    assert (status.state, status.generation) == ("ready", 1)
    assert status.next
    assert "the new one is broken" in status.next.reason
    service.loader.failure = None
    assert await service.use() == 1
    assert len(gate.inside) == 1


async def test_a_new_generation_that_never_fits_keeps_the_old_one(
    service: Service, gate: Narrow, tmp_path: Path
) -> None:
    await first(service, tmp_path / "a")
    gate.refusal = NeverFits("m needs 600 MiB; one model may take 500 MiB")
    update(service, tmp_path / "b")
    await service.until(lambda: (following := service.status().next) and following.state == "failed")
    assert service.status().state == "loaded"
    assert (await service.use(), len(service.loader.made)) == (1, 1)


async def test_a_model_that_is_removed_meanwhile_is_gone(service: Service, gate: Narrow, tmp_path: Path) -> None:
    await first(service, tmp_path / "a")
    serving = service.store.serveable(service.store.get("m"))
    async with service.manager.lease(serving.descriptor, serving.runtime):
        update(service, tmp_path / "b")
        await service.until_state("pending")
        service.model_set.remove("m")
    await service.until(lambda: not service.manager.slots())
    assert (service.loader.alive, gate.inside, list(service.store)) == ([], set(), [])


async def test_kept_model_is_pinned_until_it_is_released(service: Service, tmp_path: Path) -> None:
    wanted = registration(local_manifest(tmp_path / "a"), keep_loaded=True)
    service.model_set.apply(wanted)
    status = await service.until_state("loaded")
    assert status.memory
    assert status.memory.pinned
    key = service.manager.slots()[0].key
    assert await service.manager.evict(key, "test") is None
    service.model_set.apply(dataclasses.replace(wanted, keep_loaded=False, unloads=1))
    await service.until_state("ready")
    assert not service.manager.pinned("m")
    service.model_set.apply(dataclasses.replace(wanted, unloads=1))
    await service.until_state("loaded")
    service.model_set.remove("m")
    assert not service.manager.pinned("m")


@pytest.mark.parametrize("name", ["wanted", "m"])
async def test_preloaded_model_is_loaded_once_and_may_be_evicted(service: Service, tmp_path: Path, name: str) -> None:
    """The model is named by its id or by an alias."""
    named = registration(local_manifest(tmp_path / "a"), name)
    service.model_set.apply(dataclasses.replace(named, aliases=("alias",) if name == "m" else ()))
    await service.until(lambda: service.status(name).state == "loaded")
    key = service.manager.slots()[0].key
    await service.until(lambda: service.manager.evictable(key))
    assert await service.manager.evict(key, "test") is not None
    service.model_set.keep()
    await asyncio.sleep(0)
    assert (service.status(name).state, service.manager.slots()) == ("ready", [])


async def test_nothing_else_is_loaded_unasked(service: Service, tmp_path: Path) -> None:
    service.model_set.apply(registration(local_manifest(tmp_path / "a")))
    await service.until_state("ready")
    service.model_set.keep()
    await asyncio.sleep(0)
    assert service.manager.slots() == []


async def test_a_loading_model_reports_it(service: Service, tmp_path: Path) -> None:
    service.loader.gate.clear()
    service.model_set.apply(registration(local_manifest(tmp_path / "a"), keep_loaded=True))
    await service.until(lambda: service.status().memory)
    status = service.status()
    assert status.memory
    assert (status.state, status.memory.loading, status.memory.requests) == ("ready", True, 1)
    service.loader.gate.set()
    status = await service.until_state("loaded")
    assert status.memory
    assert (status.memory.loading, status.memory.requests) == (False, 0)


async def test_ready_model_reports_why_memory_was_refused(service: Service, gate: Narrow, tmp_path: Path) -> None:
    service.model_set.apply(registration(local_manifest(tmp_path / "a"), "large"))
    service.model_set.apply(registration(local_manifest(tmp_path / "b")))
    await service.until_state("ready")
    await service.until(lambda: service.status("large").state == "ready")
    await service.use("large")
    with pytest.raises(NoRoom):
        await service.use()
    status = service.status()
    assert (status.state, status.reason, status.memory) == ("ready", "m needs 600 MiB; free: 400 MiB", None)
    await service.manager.retire("large")
    await service.use()
    assert service.status().reason == ""
    assert len(gate.inside) == 1
