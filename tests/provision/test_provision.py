"""A service and its catalog: watches, reports and lookups, also across catalog outages."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from allm.models.v1 import model_pb2, model_service_pb2

from services.errors import ModelInvalid, ModelNotFound, ModelNotReady, Unsupported
from services.models.runtime_choice import EngineRegistry
from services.models.runtimes import RUNTIMES
from services.provision import follower as follower_module
from services.provision import provision as provision_module
from services.provision.provision import Provision
from services.provision.reporter import FigureReader
from services.residency.memory.host_memory import HostMemory
from services.residency.memory.readings import MemorySnapshot
from services.settings.settings import load_settings
from services.telemetry.figures import Figures, ModelEvents, ModelLatencies
from tests.provision.catalog_script import ScriptedCatalog
from tests.provision.desired_models import Loader, Manager, local_manifest, registration

PATIENCE_SECONDS = 60
POLL_SECONDS = 0.02


@pytest_asyncio.fixture
async def catalog() -> AsyncIterator[ScriptedCatalog]:
    catalog = ScriptedCatalog()
    await catalog.start()
    yield catalog
    await catalog.close()


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
def manager(loader: Loader) -> Manager:
    return Manager(loader)


@pytest_asyncio.fixture
async def provision(
    catalog: ScriptedCatalog, manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Provision]:
    monkeypatch.setattr(provision_module, "SYNC_SECONDS", 0.2)
    settings = load_settings({"ALLM_HOME": str(tmp_path), "ALLM_CATALOG": catalog.address, "ALLM_REPLICA": "me"})
    provision = Provision(settings.model, "text", EngineRegistry("cpu", forced=True), manager)
    yield provision
    await provision.close()
    await manager.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - another process's state, in effect
            await asyncio.sleep(POLL_SECONDS)


def states(catalog: ScriptedCatalog) -> dict[str, str]:
    """Returns the last reported state of each model."""
    found = {}
    for report in catalog.reports:
        for status in report.statuses:
            found[status.id] = model_pb2.ModelState.Name(status.status.state).removeprefix("MODEL_STATE_").lower()
    return found


async def test_a_start_knows_everything_that_is_registered(
    catalog: ScriptedCatalog, provision: Provision, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        catalog.tell(registration(local_manifest(tmp_path / name), model_id=name))
    await provision.start()
    assert [model.id for model in provision.store] == ["a", "b"]
    assert catalog.watches == [model_service_pb2.WatchModelsRequest(modality=model_pb2.MODALITY_TEXT)]
    await until(lambda: states(catalog) == {"a": "ready", "b": "ready"})


async def test_the_first_report_is_complete_and_later_ones_hold_only_changes(
    catalog: ScriptedCatalog, provision: Provision, tmp_path: Path
) -> None:
    catalog.tell(registration(local_manifest(tmp_path / "a"), model_id="a"))
    await provision.start()
    await until(lambda: states(catalog).get("a") == "ready")
    first = catalog.reports[0]
    assert first.complete
    assert (first.replica, first.modality, first.device, first.device_forced) == (
        "me",
        model_pb2.MODALITY_TEXT,
        "cpu",
        True,
    )
    own = [runtime for runtime in RUNTIMES if runtime.modality == "text"]
    offered = {(one.name, *one.capabilities): set(one.architectures) for one in first.runtimes}
    assert offered == {
        (runtime.name, capability): architectures
        for runtime in own
        for capability, architectures in runtime.architectures.items()
    }
    assert {one.name: (one.missing, one.pipelines) for one in first.runtimes} == {
        runtime.name: (runtime.missing, runtime.pipelines) for runtime in own
    }
    count = len(catalog.reports)
    await until(lambda: len(catalog.reports) >= count + 3)
    for heartbeat in catalog.reports[count + 1 :]:
        assert not heartbeat.complete
        assert not heartbeat.statuses
        assert not heartbeat.runtimes
    catalog.tell(registration(local_manifest(tmp_path / "b"), model_id="b"))
    await until(lambda: states(catalog).get("b") == "ready")
    assert not any(status.id == "a" for report in catalog.reports[count + 1 :] for status in report.statuses)


async def test_a_catalog_that_has_forgotten_gets_everything_again(
    catalog: ScriptedCatalog, provision: Provision, tmp_path: Path
) -> None:
    catalog.tell(registration(local_manifest(tmp_path / "a"), model_id="a"))
    await provision.start()
    await until(lambda: states(catalog).get("a") == "ready")
    count = len(catalog.reports)
    catalog.send_complete = True
    await until(lambda: any(report.complete for report in catalog.reports[count:]))
    catalog.send_complete = False
    (complete, *_) = [report for report in catalog.reports[count:] if report.complete]
    assert [status.id for status in complete.statuses] == ["a"]


async def test_while_the_catalog_is_away_the_service_goes_on_and_catches_up(
    catalog: ScriptedCatalog, provision: Provision, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        catalog.tell(registration(local_manifest(tmp_path / name), model_id=name))
    await provision.start()
    await until(lambda: states(catalog) == {"a": "ready", "b": "ready"})
    await catalog.stop()
    assert provision.store.serveable(provision.store.get("a"))
    with pytest.raises(ModelNotReady, match="catalog cannot be asked"):
        await provision.store.find("unknown")
    del catalog.models["a"]  # removed and registered anew during the outage
    catalog.models["c"] = registration(local_manifest(tmp_path / "c"), model_id="c")
    catalog.reports.clear()
    await catalog.start()
    await until(lambda: [model.id for model in provision.store] == ["b", "c"])
    await until(lambda: states(catalog).get("c") == "ready")
    await until(lambda: any(report.complete for report in catalog.reports))


async def test_without_a_catalog_a_service_starts_and_finds_it_later(
    catalog: ScriptedCatalog, provision: Provision, tmp_path: Path
) -> None:
    await catalog.stop()
    await provision.start()
    assert list(provision.store) == []
    catalog.models["a"] = registration(local_manifest(tmp_path / "a"), model_id="a")
    await catalog.start()
    await until(lambda: "a" in provision.store)


async def test_removal_and_change_arrive(catalog: ScriptedCatalog, provision: Provision, tmp_path: Path) -> None:
    wanted = registration(local_manifest(tmp_path / "a"), model_id="a")
    catalog.tell(wanted)
    await provision.start()
    catalog.tell(dataclasses.replace(wanted, aliases=("gpt-4o",)))
    await until(lambda: "gpt-4o" in provision.store)
    catalog.tell_removed("a")
    await until(lambda: "a" not in provision.store)


async def test_a_registration_that_cannot_be_read_harms_no_other(
    catalog: ScriptedCatalog, provision: Provision, tmp_path: Path
) -> None:
    hostile = local_manifest(tmp_path / "h")
    files = (dataclasses.replace(hostile.files[0], path="../../etc/passwd"),)
    catalog.tell(registration(dataclasses.replace(hostile, files=files, primary=""), model_id="hostile"))
    catalog.tell(registration(local_manifest(tmp_path / "a"), model_id="a"))
    await provision.start()
    await until(lambda: states(catalog).get("a") == "ready")
    assert [model.id for model in provision.store] == ["a"]


async def test_a_name_that_was_registered_a_moment_ago_is_waited_for(
    catalog: ScriptedCatalog, provision: Provision, tmp_path: Path
) -> None:
    await provision.start()
    wanted = registration(local_manifest(tmp_path / "a"), model_id="a")
    catalog.known["a"] = wanted
    asking = asyncio.create_task(provision.store.find("a"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asking), POLL_SECONDS)
    catalog.tell(wanted)
    assert (await asking).id == "a"


async def test_names_that_are_not_for_this_service(
    catalog: ScriptedCatalog, provision: Provision, tmp_path: Path
) -> None:
    await provision.start()
    audio = registration(local_manifest(tmp_path / "a"), model_id="whisper")
    catalog.known["whisper"] = dataclasses.replace(audio, facts=dataclasses.replace(audio.facts, modality="audio"))
    with pytest.raises(Unsupported, match="not for text"):
        await provision.store.find("whisper")
    with pytest.raises(ModelNotFound):
        await provision.store.find("nothing")


async def test_leaving_replica_announces_it(catalog: ScriptedCatalog, provision: Provision) -> None:
    await provision.start()
    await until(lambda: catalog.reports)
    await provision.leave()
    assert catalog.reports[-1].leaving
    assert catalog.reports[-1].replica == "me"
    await provision.leave()
    assert [report.leaving for report in catalog.reports].count(True) == 1


async def test_replica_leaves_even_during_a_change(
    catalog: ScriptedCatalog, provision: Provision, manager: Manager
) -> None:
    catalog.within = PATIENCE_SECONDS  # the service waits for changes
    await provision.start()
    await until(lambda: len(catalog.reports) >= 2)  # the second report covers all registered models
    manager.on_change()
    async with asyncio.timeout(PATIENCE_SECONDS / 2):
        await provision.leave()
    assert catalog.reports[-1].leaving


async def test_re_registration_is_reported_even_if_unchanged(
    catalog: ScriptedCatalog, provision: Provision, tmp_path: Path
) -> None:
    """The catalog drops a model's reports when the model is deleted."""
    wanted = registration(local_manifest(tmp_path / "a"), model_id="a")
    catalog.tell(wanted)
    await provision.start()
    await until(lambda: states(catalog).get("a") == "ready")
    catalog.tell_removed("a")
    await until(lambda: "a" not in provision.store)
    catalog.reports.clear()
    catalog.tell(wanted)
    await until(lambda: states(catalog).get("a") == "ready")


async def test_interrupted_watch_may_miss_a_re_registration(
    catalog: ScriptedCatalog, provision: Provision, tmp_path: Path
) -> None:
    catalog.tell(registration(local_manifest(tmp_path / "a"), model_id="a"))
    await provision.start()
    await until(lambda: states(catalog).get("a") == "ready")
    count = len(catalog.reports)
    catalog.end_watches()
    await until(lambda: any(report.complete for report in catalog.reports[count:]))


async def test_replicas_that_never_report_to_a_new_catalog_expire(
    catalog: ScriptedCatalog, provision: Provision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "SETTLE_SECONDS", 0.5)
    wanted = registration(local_manifest(tmp_path / "a"), model_id="a")
    catalog.tell(dataclasses.replace(wanted, ready_replicas=frozenset({"me", "other"})))
    await provision.start()
    await until(lambda: len(catalog.watches) == 1)
    await catalog.stop()
    catalog.models["a"] = dataclasses.replace(wanted, aliases=("new",))  # the new catalog has no reports yet
    await catalog.start()
    await until(lambda: "new" in provision.store)
    assert provision.store.get("a").desired.ready_replicas == {"me", "other"}
    await until(lambda: provision.store.get("a").desired.ready_replicas == frozenset())


class Telling(FigureReader):
    """A figure reader that a test can break."""

    broken = False

    def read(self, event: int = 0, latency: int = 0) -> Figures:
        if self.broken:
            raise OSError("a mistake of ours")
        return super().read(event, latency)


@pytest_asyncio.fixture
async def telling(
    catalog: ScriptedCatalog, manager: Manager, tmp_path: Path
) -> AsyncIterator[tuple[Telling, ModelEvents]]:
    """Yields the figures and the model events of a running replica."""
    settings = load_settings({"ALLM_HOME": str(tmp_path), "ALLM_CATALOG": catalog.address, "ALLM_REPLICA": "me"})
    events, memory = ModelEvents(), MemorySnapshot(HostMemory(100, 60, "psutil"), (), ())
    figures = Telling(lambda: memory, 0.9, events, ModelLatencies(lambda: 0.0))
    registry = EngineRegistry("cpu", forced=True)
    provision = Provision(settings.model, "text", registry, manager, figures=figures)
    await provision.start()
    yield figures, events
    await provision.close()
    await manager.close()


async def test_every_report_has_figures_and_each_event_until_it_was_taken(
    catalog: ScriptedCatalog, telling: tuple[Telling, ModelEvents]
) -> None:
    _, events = telling
    await until(lambda: len(catalog.reports) >= 2)
    assert all(report.figures.host.used_bytes == 60 for report in catalog.reports)
    await catalog.stop()
    events.record("evicted", "m", "idle")
    seen = len(catalog.reports)
    await catalog.start()
    await until(lambda: len(catalog.reports) >= seen + 3)
    reported = [one for report in catalog.reports for one in report.figures.events]
    assert [(one.number, one.event.model_id, one.event.reason) for one in reported] == [(1, "m", "idle")]
    uptimes = [report.figures.uptime.ToNanoseconds() for report in catalog.reports]
    assert uptimes == sorted(uptimes)


async def test_each_latency_is_reported_once_and_again_to_a_catalog_that_restarted(
    catalog: ScriptedCatalog, telling: tuple[Telling, ModelEvents]
) -> None:
    def reported() -> list[list[float]]:
        return [[one.seconds for one in report.figures.latencies] for report in catalog.reports]

    figures, _ = telling
    figures._latencies.record("request", "m", 2.5)
    await until(lambda: [2.5] in reported())
    figures._latencies.record("request", "m", 1.5)
    await until(lambda: [1.5] in reported())
    count = len(catalog.reports)
    await until(lambda: len(catalog.reports) >= count + 2)
    assert not any(reported()[count:])
    catalog.send_complete = True
    await until(lambda: [2.5, 1.5] in reported())


async def test_figures_that_cannot_be_read_keep_no_report_back(
    catalog: ScriptedCatalog, telling: tuple[Telling, ModelEvents]
) -> None:
    figures, _ = telling
    await until(lambda: catalog.reports)
    figures.broken = True
    await until(lambda: not catalog.reports[-1].HasField("figures"))
    count = len(catalog.reports)
    await until(lambda: len(catalog.reports) >= count + 2)


async def test_a_report_that_cannot_be_made_is_not_the_last(
    catalog: ScriptedCatalog, provision: Provision, loader: Loader, tmp_path: Path
) -> None:
    catalog.tell(registration(local_manifest(tmp_path / "a"), model_id="a", keep_loaded=True))
    await provision.start()
    await until(lambda: states(catalog).get("a") == "loaded")
    loader.made[0].memory = 2**64  # no message holds this number
    seen = loader.made[0].asked
    await until(lambda: loader.made[0].asked > seen)
    catalog.reports.clear()
    loader.made[0].memory = 1
    await until(lambda: any(status.status.peak_memory_bytes == 1 for one in catalog.reports for status in one.statuses))


@pytest_asyncio.fixture
async def grouped(
    catalog: ScriptedCatalog, manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Provision]:
    """Yields the provision of group `code`, with models to preload."""
    monkeypatch.setattr(provision_module, "SYNC_SECONDS", 0.2)
    monkeypatch.setattr(provision_module, "WARMING_SECONDS", POLL_SECONDS)
    settings = load_settings(
        {
            "ALLM_HOME": str(tmp_path),
            "ALLM_CATALOG": catalog.address,
            "ALLM_TEXT_GROUP_MODELS": "code=coder*,helper;large=llama",
            "ALLM_TEXT_GROUP": "code",
        }
    )
    registry, preload = EngineRegistry("cpu", forced=True), ("coder", "llama", "nothing")
    made = Provision(settings.model, "text", registry, manager, preload, share=settings.cluster.share)
    yield made
    await made.close()
    await manager.close()


async def test_a_group_has_its_own_models_only(catalog: ScriptedCatalog, grouped: Provision, tmp_path: Path) -> None:
    for name in ("coder", "llama", "small"):
        catalog.known[name] = registration(local_manifest(tmp_path / name), model_id=name)
        catalog.tell(catalog.known[name])
    await grouped.start()
    assert [model.id for model in grouped.store] == ["coder"]
    with pytest.raises(ModelNotFound, match=r"not served by the group 'code'.*'large'.*ALLM_TEXT_GROUP_MODELS"):
        await grouped.store.find("llama")
    with pytest.raises(ModelNotFound, match="the default one"):
        await grouped.store.find("small")
    with pytest.raises(ModelNotFound, match="does not exist"):
        await grouped.store.find("never")


async def test_an_alias_brings_a_model_to_a_group_and_takes_it_away(
    catalog: ScriptedCatalog, grouped: Provision, tmp_path: Path
) -> None:
    small = registration(local_manifest(tmp_path / "small"), model_id="small")
    catalog.tell(small)
    await grouped.start()
    assert not list(grouped.store)
    catalog.tell(dataclasses.replace(small, aliases=("helper",)))
    await until(lambda: "helper" in grouped.store)
    catalog.tell(small)
    await until(lambda: "small" not in grouped.store)


async def test_a_replica_is_warm_once_the_preloaded_models_are_loaded(
    catalog: ScriptedCatalog, grouped: Provision, loader: Loader, tmp_path: Path
) -> None:
    catalog.tell(registration(local_manifest(tmp_path / "coder"), model_id="coder"))
    loader.gate.clear()
    warm = asyncio.create_task(grouped.warm())
    await grouped.start()
    await until(lambda: states(catalog).get("coder") == "ready")
    assert not warm.done(), "it is not in memory yet"
    loader.gate.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await warm


async def test_replica_that_cannot_load_a_model_is_still_warm(
    catalog: ScriptedCatalog, grouped: Provision, loader: Loader, tmp_path: Path
) -> None:
    """A broken model would otherwise keep its service from serving all others."""
    catalog.tell(registration(local_manifest(tmp_path / "coder"), model_id="coder"))
    loader.failure = ModelInvalid("broken")
    await grouped.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await grouped.warm()


async def test_replica_without_the_catalog_is_not_warm(catalog: ScriptedCatalog, grouped: Provision) -> None:
    await catalog.stop()
    warm = asyncio.create_task(grouped.warm())
    await grouped.start()
    assert not warm.done()
    await catalog.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await warm
