"""The models of a service: files, generations, loading and unloading, removal, failure and recovery."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from services.errors import Internal, ModelInvalid, ModelNotFound, ModelNotReady, Unsupported
from services.models.runtime_choice import EngineRegistry
from services.models.status import Status
from services.models.store import ModelStore
from services.provision import preparation
from services.provision.follower import ModelSet
from services.provision.model_cache import ModelCache
from services.provision.preparation import Means
from services.settings.settings import load_settings
from tests.provision.desired_models import Loader, Manager, local_manifest, registration

PATIENCE_SECONDS = 60
POLL_SECONDS = 0.05


class Service:
    """A service's model set, manager and store, without a catalog or gRPC."""

    def __init__(self, folder: Path, *preload: str) -> None:
        self.loader = Loader()
        self.manager = Manager(self.loader)
        self.store = ModelStore("me")
        self.changed = asyncio.Event()
        self.manager.on_change = self.changed.set
        means = Means(
            settings=load_settings({"ALLM_HOME": str(folder)}).model,
            registry=EngineRegistry("cpu", forced=False),
            manager=self.manager,
            store=self.store,
            model_cache=ModelCache(folder / "models"),
            changed=self.changed.set,
            preload=frozenset(preload),
        )
        self.model_set = ModelSet(means)

    def status(self, model_id: str = "m") -> Status:
        return self.model_set.statuses()[model_id]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self.changed.clear()
                self.model_set.keep()
                with contextlib.suppress(TimeoutError):  # the reporter also wakes up without a change now and then
                    await asyncio.wait_for(self.changed.wait(), POLL_SECONDS)

    async def until_state(self, state: str) -> Status:
        await self.until(lambda: self.status().state == state)
        return self.status()

    async def use(self, model_id: str = "m") -> int:
        """Leases the model as a request does. Returns the generation that answered."""
        serving = self.store.serveable(self.store.get(model_id))
        async with self.manager.lease(serving.descriptor, serving.runtime) as loaded:
            return loaded.descriptor.generation


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    service = Service(tmp_path / "home")
    yield service
    await service.model_set.close()
    await service.manager.close()


async def test_a_local_model_is_ready_where_it_lies_and_loaded_by_the_first_request(
    service: Service, tmp_path: Path
) -> None:
    service.model_set.apply(registration(local_manifest(tmp_path / "a")))
    assert service.status().state == "pending"
    with pytest.raises(ModelNotReady):
        service.store.serveable(service.store.get("m"))
    status = await service.until_state("ready")
    assert (status.runtime, status.device, status.generation, status.reason) == ("llama_cpp", "cpu", 1, "")
    assert await service.use() == 1
    status = await service.until_state("loaded")
    assert status.peak_memory == 4096
    assert service.loader.made[0].descriptor.primary == tmp_path / "a" / "m.gguf"


async def test_an_unsupported_model_is_never_fetched_and_says_why(service: Service, tmp_path: Path) -> None:
    service.model_set.apply(registration(local_manifest(tmp_path / "a"), architecture="exotic"))
    status = await service.until_state("unsupported")
    assert "architecture 'exotic' is not supported by llama_cpp" in status.reason
    with pytest.raises(Unsupported, match="exotic"):
        service.store.serveable(service.store.get("m"))


async def test_files_that_are_not_as_registered_fail_by_name_and_recover(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "LOOK_AGAIN", 0.05)
    manifest = local_manifest(tmp_path / "a")
    (tmp_path / "a" / "m.gguf").write_bytes(b"short")
    service.model_set.apply(registration(manifest))
    status = await service.until_state("failed")
    assert "m.gguf" in status.reason
    assert "5" in status.reason
    assert "7" in status.reason
    with pytest.raises(ModelInvalid, match=r"m\.gguf"):
        service.store.serveable(service.store.get("m"))
    (tmp_path / "a" / "m.gguf").write_bytes(b"weights")
    await service.until_state("ready")


async def test_a_new_generation_takes_over_only_when_it_can(service: Service, tmp_path: Path) -> None:
    service.model_set.apply(registration(local_manifest(tmp_path / "old")))
    await service.until_state("ready")
    await service.use()
    service.loader.gate.clear()
    service.model_set.apply(registration(local_manifest(tmp_path / "new"), generation=2))
    await service.until(lambda: service.status().next)
    assert await service.use() == 1, "the old one serves while the new one is loaded"
    assert (service.status().generation, service.status().state) == (1, "loaded")
    service.loader.gate.set()
    await service.until(lambda: service.status().generation == 2)
    assert service.status().next is None
    assert await service.use() == 2
    await service.until(lambda: len(service.loader.alive) == 1)
    assert (tmp_path / "old" / "m.gguf").exists(), "files of a local source are never touched"


async def test_a_running_request_keeps_the_old_generation(service: Service, tmp_path: Path) -> None:
    service.model_set.apply(registration(local_manifest(tmp_path / "old")))
    await service.until_state("ready")
    serving = service.store.serveable(service.store.get("m"))
    async with service.manager.lease(serving.descriptor, serving.runtime) as old:
        service.model_set.apply(registration(local_manifest(tmp_path / "new"), generation=2))
        await service.until(lambda: service.status().generation == 2)
        assert old.alive
        assert await service.use() == 2
    await service.until(lambda: not old.alive)


async def test_a_new_generation_that_cannot_be_loaded_leaves_the_old_one_alone(
    service: Service, tmp_path: Path
) -> None:
    service.model_set.apply(registration(local_manifest(tmp_path / "old")))
    await service.until_state("ready")
    await service.use()
    service.loader.failure = Internal("worker crashed")
    service.model_set.apply(registration(local_manifest(tmp_path / "new"), generation=2))
    await service.until(lambda: service.status().next and service.status().next.state == "failed")
    status = service.status()
    assert (status.state, status.generation) == ("loaded", 1)
    assert status.next
    assert (status.next.generation, status.next.reason) == (2, "worker crashed")
    assert await service.use() == 1


async def test_a_new_generation_with_wrong_files_leaves_the_old_one_alone(service: Service, tmp_path: Path) -> None:
    service.model_set.apply(registration(local_manifest(tmp_path / "old")))
    await service.until_state("ready")
    manifest = local_manifest(tmp_path / "new")
    (tmp_path / "new" / "m.gguf").unlink()
    service.model_set.apply(registration(manifest, generation=2))
    await service.until(lambda: service.status().next and service.status().next.state == "failed")
    assert service.status().state == "ready"
    assert await service.use() == 1
    # A third generation replaces the second.
    service.model_set.apply(registration(local_manifest(tmp_path / "third"), generation=3))
    await service.until(lambda: service.status().generation == 3)
    assert await service.use() == 3


async def test_a_model_that_is_to_be_in_memory_is_loaded_and_loaded_again(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "LOAD_AGAIN", 0.0)
    service.model_set.apply(registration(local_manifest(tmp_path / "a"), keep_loaded=True))
    await service.until_state("loaded")
    service.loader.made[0].alive = False  # its worker died
    service.changed.set()
    await service.until(lambda: len(service.loader.made) == 2)
    await service.until_state("loaded")


async def test_unloadable_model_has_failed_and_every_request_retries(service: Service, tmp_path: Path) -> None:
    service.loader.failure = Internal("no room")
    service.model_set.apply(registration(local_manifest(tmp_path / "a"), keep_loaded=True))
    status = await service.until_state("failed")
    assert status.reason == "no room"
    with pytest.raises(Internal, match="no room"):
        await service.use()
    service.loader.failure = None
    assert await service.use() == 1
    await service.until_state("loaded")


async def test_unloading_gives_the_memory_back_once_running_requests_have_ended(
    service: Service, tmp_path: Path
) -> None:
    wanted = registration(local_manifest(tmp_path / "a"), keep_loaded=True)
    service.model_set.apply(wanted)
    await service.until_state("loaded")
    serving = service.store.serveable(service.store.get("m"))
    async with service.manager.lease(serving.descriptor, serving.runtime) as loaded:
        service.model_set.apply(dataclasses.replace(wanted, keep_loaded=False, unloads=1))
        await service.until_state("ready")
        assert loaded.alive
    await service.until(lambda: not loaded.alive)
    assert await service.use() == 1, "the next request loads it again"


async def test_unloads_of_before_this_service_began_are_over(service: Service, tmp_path: Path) -> None:
    wanted = registration(local_manifest(tmp_path / "a"), unloads=7)
    service.model_set.apply(wanted)
    await service.until_state("ready")
    await service.use()
    service.model_set.apply(dataclasses.replace(wanted, aliases=("x",)))
    assert service.store.get("x").id == "m"
    assert (await service.until_state("loaded")).state == "loaded"


async def test_a_removed_model_is_gone_at_once_and_its_memory_follows(service: Service, tmp_path: Path) -> None:
    service.model_set.apply(registration(local_manifest(tmp_path / "a")))
    await service.until_state("ready")
    await service.use()
    service.model_set.remove("m")
    assert service.model_set.statuses() == {}
    with pytest.raises(ModelNotFound):
        service.store.get("m")
    await service.until(lambda: not service.loader.alive)
    assert (tmp_path / "a" / "m.gguf").exists()
    service.model_set.remove("m")


async def test_re_registered_model_waits_until_the_old_one_is_removed(service: Service, tmp_path: Path) -> None:
    service.model_set.apply(registration(local_manifest(tmp_path / "a")))
    await service.until_state("ready")
    serving = service.store.serveable(service.store.get("m"))
    async with service.manager.lease(serving.descriptor, serving.runtime) as old:
        # The catalog was away during the removal: only the registration time shows it.
        service.model_set.apply(registration(local_manifest(tmp_path / "b"), created=2))
        assert service.status().state == "pending"
        assert old.alive
    await service.until_state("ready")
    assert not old.alive
    await service.use()
    assert service.loader.alive[0].descriptor.primary == tmp_path / "b" / "m.gguf"


async def test_models_dropped_by_the_catalog_are_removed(service: Service, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        service.model_set.apply(registration(local_manifest(tmp_path / name), model_id=name))
    service.model_set.retain({"b"})
    assert set(service.model_set.statuses()) == {"b"}
    assert [model.id for model in service.store] == ["b"]


async def test_the_same_news_twice_change_nothing(service: Service, tmp_path: Path) -> None:
    wanted = registration(local_manifest(tmp_path / "a"))
    service.model_set.apply(wanted)
    await service.until_state("ready")
    await service.use()
    await asyncio.sleep(0)
    service.changed.clear()
    service.model_set.apply(registration(local_manifest(tmp_path / "a")))
    assert not service.changed.is_set()
    assert len(service.loader.made) == 1


async def test_a_runtime_that_is_asked_for_and_cannot_leaves_what_serves_alone(
    service: Service, tmp_path: Path
) -> None:
    wanted = registration(local_manifest(tmp_path / "a"))
    service.model_set.apply(wanted)
    await service.until_state("ready")
    service.model_set.apply(dataclasses.replace(wanted, runtime="vllm"))
    await service.until(lambda: service.status().next)
    await service.until(lambda: service.status().next and service.status().next.state == "unsupported")
    assert service.status().state == "ready"
    service.model_set.apply(dataclasses.replace(wanted, runtime="llama_cpp"))
    await service.until(lambda: service.status().next is None)
    assert service.status().state == "ready"


async def test_load_after_unload_does_not_wait_for_the_next_attempt(service: Service, tmp_path: Path) -> None:
    wanted = registration(local_manifest(tmp_path / "a"), keep_loaded=True)
    service.model_set.apply(wanted)
    await service.until_state("loaded")
    service.model_set.apply(dataclasses.replace(wanted, keep_loaded=False, unloads=1))
    await service.until_state("ready")
    service.model_set.apply(dataclasses.replace(wanted, keep_loaded=True, unloads=1))
    await service.until_state("loaded")  # well within this test's timeout; LOAD_AGAIN is longer
