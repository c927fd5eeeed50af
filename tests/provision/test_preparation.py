"""Changes during other changes: nothing of an earlier state returns, is interrupted, or stays behind."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from services.errors import ModelInvalid
from services.models.manifest import Manifest
from services.provision import fetch, preparation
from services.provision import fetch as fetch_module
from services.provision.model_cache import ModelCache
from tests.loopback_hub import LoopbackHub
from tests.provision.desired_models import local_manifest, registration
from tests.provision.preparing import PATIENCE_SECONDS, WEIGHTS, Service, on_hub, settle, wanted


async def test_a_model_removed_while_it_downloads_stays_removed(
    service: Service, hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "INTERVAL", 0.0)  # sends the last progress report for certain
    manifest = on_hub(hub, tmp_path / "a", bytes(2_000_000))
    gate = hub.gate(WEIGHTS, after_bytes=1_000_000)
    service.model_set.apply(wanted(manifest))
    await service.until(gate.reached.is_set)
    service.model_set.remove("m")
    await settle()
    gate.open()
    await service.until(lambda: not service.files())
    assert "m" not in service.store
    assert list(service.store) == []


async def test_removing_a_re_registered_model_keeps_running_requests_of_the_old_one(
    service: Service, hub: LoopbackHub, tmp_path: Path
) -> None:
    manifest = on_hub(hub, tmp_path / "a", b"weights")
    service.model_set.apply(wanted(manifest))
    await service.until_serving(1)
    async with service.lease():
        service.model_set.remove("m")
        for created in (2, 3):  # registered and removed again, twice, during a running answer
            service.model_set.apply(wanted(manifest, created=created))
            await asyncio.sleep(0)
            service.model_set.apply(wanted(on_hub(hub, tmp_path / "b", b"other"), generation=2, created=created))
            await asyncio.sleep(0)
            service.model_set.remove("m")
            await asyncio.sleep(0)
        await settle()
        assert service.loader.alive, "its request still runs"
        assert service.files(), "so it has its files"
    await service.until(lambda: not service.loader.alive)
    await service.until(lambda: not service.files())


async def test_removing_does_not_cut_what_an_unload_waits_for(service: Service, tmp_path: Path) -> None:
    manifest = local_manifest(tmp_path / "a")
    service.model_set.apply(wanted(manifest))
    await service.until_serving(1)
    async with service.lease():
        service.model_set.apply(wanted(manifest, unloads=1))
        await settle()
        service.model_set.remove("m")
        await settle()
        assert service.loader.alive
    await service.until(lambda: not service.loader.alive)


async def test_model_removed_while_its_files_are_being_held_is_not_held(
    service: Service, hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = on_hub(hub, tmp_path / "a", b"weights")
    begun, go_on, take = threading.Event(), threading.Event(), service.model_cache.hold

    def slow(model_id: str, manifest: Manifest) -> ExitStack:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)
        return take(model_id, manifest)

    monkeypatch.setattr(service.model_cache, "hold", slow)
    service.model_set.apply(wanted(manifest))
    await service.until(begun.is_set)
    service.model_set.remove("m")
    await settle()
    go_on.set()
    await service.until(lambda: service.model_cache.discard("m", manifest))


async def test_the_files_of_a_generation_that_never_served_go_too(
    service: Service, hub: LoopbackHub, tmp_path: Path
) -> None:
    service.model_set.apply(wanted(on_hub(hub, tmp_path / "a", b"first")))
    await service.until_serving(1)
    second = on_hub(hub, tmp_path / "b", bytes(3_000_000))
    gate = hub.gate(WEIGHTS, after_bytes=1_000_000)
    service.model_set.apply(wanted(second, generation=2))
    await service.until(gate.reached.is_set)
    third = on_hub(hub, tmp_path / "c", b"third")
    service.model_set.apply(wanted(third, generation=3))
    await asyncio.to_thread(hub.heal)
    await service.until_serving(3)
    await service.until(lambda: service.files() == [service.model_cache.model_folder("m", third) / WEIGHTS])


async def test_generations_replaced_while_stopped_are_removed_at_the_next_start(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    first, second = on_hub(hub, tmp_path / "a", b"first"), on_hub(hub, tmp_path / "b", b"second")
    service = Service(tmp_path / "home")
    service.model_set.apply(wanted(first))
    await service.until_serving(1)
    await service.model_set.close()
    anew = Service(tmp_path / "home")
    anew.model_set.apply(wanted(second, generation=2))
    await anew.until_serving(2)
    await anew.until(lambda: anew.files() == [anew.model_cache.model_folder("m", second) / WEIGHTS])
    await anew.model_set.close()


async def test_loading_a_failed_model_retries_its_fetch(service: Service, hub: LoopbackHub, tmp_path: Path) -> None:
    manifest = on_hub(hub, tmp_path / "a", b"weights")
    hub.status(WEIGHTS, 404, times=2)
    service.model_set.apply(wanted(manifest))
    await service.until(lambda: service.status().state == "failed")
    service.model_set.apply(wanted(manifest, unloads=1))
    await service.until(lambda: len(hub.asked(WEIGHTS, cdn=False)) == 2 and service.status().state == "failed")
    service.model_set.apply(wanted(manifest, unloads=1, keep_loaded=True))
    await service.until(lambda: service.status().state == "loaded")


async def test_a_load_that_fails_on_missing_files_fetches_them_again(
    service: Service, hub: LoopbackHub, tmp_path: Path
) -> None:
    manifest = on_hub(hub, tmp_path / "a", b"weights")
    service.model_set.apply(wanted(manifest))
    await service.until_serving(1)
    (path,) = service.files()
    path.unlink()
    service.loader.failure = ModelInvalid("no such file")
    with pytest.raises(ModelInvalid):
        async with service.lease():
            pass
    service.loader.failure = None
    await service.until(lambda: service.files() == [path])
    await service.until_serving(1)
    async with service.lease():
        assert path.read_bytes() == b"weights"


async def test_a_load_that_fails_for_another_reason_leaves_the_files_alone(
    service: Service, hub: LoopbackHub, tmp_path: Path
) -> None:
    service.model_set.apply(wanted(on_hub(hub, tmp_path / "a", b"weights")))
    await service.until_serving(1)
    hub.requests.clear()
    service.loader.failure = ModelInvalid("no room")
    with pytest.raises(ModelInvalid):
        async with service.lease():
            pass
    await service.until(lambda: service.status().state == "failed")
    await settle()
    assert not hub.requests
    assert service.status().reason == "no room"


async def test_replica_waiting_for_another_fetch_reports_it(service: Service, hub: LoopbackHub, tmp_path: Path) -> None:
    manifest = on_hub(hub, tmp_path / "a", b"weights")
    lock = ModelCache(service.model_cache.folder).fetch_lock("m", manifest)
    assert lock.take()
    service.model_set.apply(wanted(manifest))
    await service.until(lambda: "waits for its turn" in service.status().reason)
    lock.release()
    await service.until_serving(1)


async def test_a_disk_that_takes_nothing_is_tried_again(
    service: Service, hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "LOOK_AGAIN", 0.05)
    locks = service.model_cache.folder / ".locks"
    locks.parent.mkdir(parents=True)
    locks.write_text("in the way, like a disk that is full or may not be written")
    service.model_set.apply(wanted(on_hub(hub, tmp_path / "a", b"weights")))
    await service.until(lambda: service.status().state == "failed")
    assert "ALLM_MODELS_DIR" in service.status().reason
    locks.unlink()
    await service.until_serving(1)


async def test_only_so_many_models_are_fetched_at_the_same_time(
    service: Service, hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "LOCK_SECONDS", 0.01)
    manifest = on_hub(hub, tmp_path / "a", bytes(2_000_000))
    gate = hub.gate(WEIGHTS)
    names = [f"m-{number}" for number in range(fetch_module.MODELS_AT_ONCE + 3)]
    for name in names:
        service.model_set.apply(registration(manifest, model_id=name))
    await service.until(lambda: len(hub.asked(WEIGHTS, cdn=True)) >= fetch_module.MODELS_AT_ONCE)
    waiting = [name for name in names if not service.model_cache.staging(name, manifest).exists()]
    assert len(waiting) == 3
    service.model_set.remove(waiting[0])  # removing a waiting download does not wait for the others
    await service.until(lambda: waiting[0] not in service.model_set.statuses())
    gate.open()
    await service.until(lambda: all(status.serving for status in service.model_set.statuses().values()))
    assert len(hub.asked(WEIGHTS, cdn=True)) == len(names) - 1


async def test_a_worker_that_dies_again_and_again_is_not_started_without_a_pause(
    service: Service, tmp_path: Path
) -> None:
    service.model_set.apply(wanted(local_manifest(tmp_path / "a"), keep_loaded=True))
    await service.until(lambda: service.loader.made)
    for _ in range(100):
        for loaded in service.loader.made:
            loaded.alive = False
        service.model_set.keep()
        await asyncio.sleep(0)
    assert len(service.loader.made) == 1
    assert preparation.LOAD_AGAIN > 1
