"""The model's own files while an execution cache serves: fetched afterwards, kept, resumed, and the first to go."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from services.models.desired import Artifact, DesiredModel
from services.models.manifest import Manifest
from services.provision import canonical, fetch
from services.provision.model_cache import ModelCache
from tests.loopback_hub import LoopbackHub
from tests.provision.desired_models import facts, registration
from tests.provision.preparing import Service, on_hub

OWN = "model.safetensors"
CACHE = "cache.gguf"
SIZE = 2_000_000
HALF = 1_000_000


class Usage(NamedTuple):
    """The result of shutil.disk_usage."""

    total: int
    used: int
    free: int


def cached(hub: LoopbackHub, folder: Path, model_id: str = "m") -> tuple[DesiredModel, Manifest, Manifest]:
    """Publishes a model and its execution cache; returns the registration, the own files and the cache's."""
    own = on_hub(hub, folder / "own", bytes(SIZE), f"org/{model_id}", OWN)
    cache = on_hub(hub, folder / "cache", b"cache", f"openai/{model_id}", CACHE)
    artifact = Artifact(runtime="llama_cpp", devices=frozenset({"cpu"}), facts=facts(model_id), manifest=cache)
    return registration(own, model_id=model_id, artifacts=(artifact,)), own, cache


def state(service: Service, model_id: str = "m") -> str:
    status = service.model_set.statuses()[model_id].canonical
    return status.state if status else ""


def path_of(service: Service, manifest: Manifest, model_id: str = "m") -> Path:
    return service.model_cache.model_folder(model_id, manifest) / manifest.primary


def small_disk(monkeypatch: pytest.MonkeyPatch, folder: Path, room: int) -> None:
    """Gives a disk, besides the margin, room for this many bytes."""

    def usage(_: object) -> Usage:
        used = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
        return Usage(room, used, room + fetch.MARGIN - used)

    monkeypatch.setattr(shutil, "disk_usage", usage)


async def test_canonical_files_are_fetched_after_the_cache_serves(
    service: Service, hub: LoopbackHub, tmp_path: Path
) -> None:
    desired, own, cache = cached(hub, tmp_path)
    gate = hub.gate(OWN, after_bytes=HALF)
    service.model_set.apply(desired)
    await service.until(gate.reached.is_set)
    await service.until(lambda: state(service) == "downloading")
    status = service.status()
    assert (status.state, status.artifact[:8], status.next) == ("ready", "openai/m", None)
    async with service.lease():
        assert service.loader.alive[0].descriptor.primary == path_of(service, cache)
    gate.open()
    await service.until(lambda: state(service) == "ready")
    found = service.status().canonical
    assert found
    assert (found.done_bytes, found.total_bytes, found.reason) == (SIZE, SIZE, "")
    assert path_of(service, own).read_bytes() == bytes(SIZE)


async def test_canonical_files_are_removed_with_the_model(service: Service, hub: LoopbackHub, tmp_path: Path) -> None:
    desired, _, _ = cached(hub, tmp_path)
    service.model_set.apply(desired)
    await service.until(lambda: state(service) == "ready")
    service.model_set.remove("m")
    await service.until(lambda: not service.files())
    assert not list((service.model_cache.folder / ".spare").iterdir())


async def test_a_model_that_is_removed_while_they_are_fetched_leaves_nothing(
    service: Service, hub: LoopbackHub, tmp_path: Path
) -> None:
    desired, _, _ = cached(hub, tmp_path)
    gate = hub.gate(OWN, after_bytes=HALF)
    service.model_set.apply(desired)
    await service.until(gate.reached.is_set)
    service.model_set.remove("m")
    gate.open()
    await service.until(lambda: not service.files())


async def test_a_restart_resumes(hub: LoopbackHub, tmp_path: Path) -> None:
    desired, own, _ = cached(hub, tmp_path)
    gate = hub.gate(OWN, after_bytes=HALF)
    first = Service(tmp_path / "home")
    first.model_set.apply(desired)
    await first.until(gate.reached.is_set)
    part = first.model_cache.staging("m", own) / OWN
    await first.until(lambda: part.exists() and part.stat().st_size == HALF)
    closing = asyncio.create_task(first.model_set.close())
    await first.until(lambda: not state(first))
    for _ in range(10):  # until the fetch knows that it is cancelled
        await asyncio.sleep(0)
    gate.open()
    await closing
    await first.manager.close()
    received = part.stat().st_size
    assert HALF <= received < SIZE, "the fetch was interrupted"
    hub.requests.clear()
    second = Service(tmp_path / "home")
    second.model_set.apply(desired)
    await second.until(lambda: state(second) == "ready")
    assert [request.range for request in hub.asked(OWN, cdn=True)] == [f"bytes={received}-"]
    assert not hub.asked(CACHE, cdn=True), "the cache was complete"
    await second.model_set.close()
    await second.manager.close()


async def test_switched_off_they_are_not_fetched_and_older_ones_are_deleted(hub: LoopbackHub, tmp_path: Path) -> None:
    desired, own, cache = cached(hub, tmp_path)
    keeping = Service(tmp_path / "home")
    keeping.model_set.apply(desired)
    await keeping.until(lambda: state(keeping) == "ready")
    await keeping.model_set.close()
    hub.requests.clear()
    dropping = Service(tmp_path / "home", ALLM_KEEP_CANONICAL="off")
    dropping.model_set.apply(desired)
    await dropping.until(lambda: dropping.files() == [path_of(dropping, cache)])
    assert dropping.status().canonical is None
    assert not hub.asked(OWN)
    assert not path_of(dropping, own).exists()
    await dropping.model_set.close()


async def test_canonical_files_wait_for_disk_space(
    service: Service, hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "DISK_SECONDS", 0.05)
    monkeypatch.setattr(canonical, "CHECK_SECONDS", 0.05)
    desired, _, _ = cached(hub, tmp_path)
    small_disk(monkeypatch, service.model_cache.folder, room=HALF)
    service.model_set.apply(desired)
    await service.until(lambda: (kept := service.status().canonical) is not None and "more in" in kept.reason)
    assert (service.status().state, state(service)) == ("ready", "pending")
    small_disk(monkeypatch, service.model_cache.folder, room=2 * SIZE)
    await service.until(lambda: state(service) == "ready")


async def test_canonical_files_are_deleted_when_another_model_needs_the_space(
    service: Service, hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canonical, "CHECK_SECONDS", 0.05)
    desired, own, cache = cached(hub, tmp_path)
    small_disk(monkeypatch, service.model_cache.folder, room=SIZE + HALF)
    service.model_set.apply(desired)
    await service.until(lambda: state(service) == "ready")
    service.model_set.apply(registration(on_hub(hub, tmp_path / "n", bytes(SIZE), "org/n"), model_id="n"))
    await service.until(lambda: service.model_set.statuses()["n"].serving)
    assert not path_of(service, own).exists()
    await service.until(lambda: (kept := service.status().canonical) is not None and kept.reason == canonical.DROPPED)
    assert service.status().serving
    assert path_of(service, cache).exists()


async def test_an_unfinished_fetch_gives_way(
    service: Service, hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canonical, "LOOK_SECONDS", 0.05)
    for name in ("WAIT_SECONDS", "DISK_SECONDS"):
        monkeypatch.setattr(fetch, name, 0.05)
    desired, own, _ = cached(hub, tmp_path)
    small_disk(monkeypatch, service.model_cache.folder, room=SIZE + HALF // 2)
    gate = hub.gate(OWN, after_bytes=HALF)
    service.model_set.apply(desired)
    part = service.model_cache.staging("m", own) / OWN
    await service.until(lambda: part.exists() and part.stat().st_size == HALF)
    service.model_set.apply(registration(on_hub(hub, tmp_path / "n", bytes(SIZE), "org/n"), model_id="n"))
    await service.until(lambda: not service.model_cache.is_spare("m", own))
    gate.open()
    await service.until(lambda: service.model_set.statuses()["n"].serving)
    await service.until(lambda: (kept := service.status().canonical) is not None and kept.reason == canonical.DROPPED)
    assert not part.exists()
    assert not path_of(service, own).exists()


async def test_files_that_serve_are_not_spare(service: Service, hub: LoopbackHub, tmp_path: Path) -> None:
    desired, own, _ = cached(hub, tmp_path)
    service.model_set.apply(desired)
    await service.until(lambda: state(service) == "ready")
    service.model_set.apply(registration(own))  # the publisher is no longer on the list
    await service.until(lambda: service.status().artifact == "" and service.status().next is None)
    assert service.status().canonical is None
    assert not service.model_cache.make_room(1)
    assert path_of(service, own).exists()


def test_the_oldest_canonical_files_are_deleted_first_and_only_if_that_suffices(tmp_path: Path) -> None:
    model_cache = ModelCache(tmp_path)
    old, new = (put(model_cache, name) for name in ("old", "new"))
    age(model_cache, 2)
    assert not model_cache.make_room(2 * SIZE + 1), "it would not be enough"
    assert old().exists()
    assert model_cache.make_room(SIZE)
    assert (old().exists(), new().exists()) == (False, True)


def put(model_cache: ModelCache, name: str) -> Callable[[], Path]:
    """Writes a spare model, and returns a function for its folder."""
    manifest = Manifest(files=(), repository=f"org/{name}", revision="1")
    folder = model_cache.model_folder(name, manifest)
    folder.mkdir(parents=True)
    (folder / OWN).write_bytes(bytes(SIZE))
    assert model_cache.mark_spare(name, manifest)
    return lambda: folder


def age(model_cache: ModelCache, count: int) -> None:
    """Spreads the marks, which may be of one instant."""
    marks = sorted((model_cache.folder / ".spare").iterdir(), key=lambda mark: not mark.name.startswith("old"))
    assert len(marks) == count
    for seconds, mark in enumerate(marks):
        os.utime(mark, (seconds, seconds))
