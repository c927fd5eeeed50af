"""Model watches: a snapshot, the synced event, then changes; slow watchers delay nobody and use little memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from services.catalog.catalog import Catalog
from services.catalog.database import MIGRATIONS, CatalogDatabase
from services.catalog.registration.registrations import Registrations
from services.catalog.replica_status import ReplicaReport
from services.catalog.watches import MAX_WATCHERS, Changed, Event, Removed, Synced, Watch
from services.errors import Overloaded
from services.models.artifacts import SupportedModels
from services.models.runtimes import RUNTIMES
from services.models.status import Status
from services.settings.settings import load_settings
from tests.catalog.catalog_service import PATIENCE, Clock
from tests.catalog.desired_model import desired, facts

WHOLE = ReplicaReport(replica="t", modality="text", complete=True, device="cpu", runtimes=RUNTIMES)
READY = Status(state="ready", generation=1)


@pytest.fixture
async def registrations(tmp_path: Path) -> AsyncIterator[Registrations]:
    database = await CatalogDatabase.open(tmp_path / "c.db", MIGRATIONS)
    yield await Registrations.load(database)
    await database.close()


@pytest.fixture
async def catalog(registrations: Registrations) -> AsyncIterator[Catalog]:
    found = Catalog(registrations, load_settings({}).model, SupportedModels({}), Clock())
    yield found
    await found.close()


async def soon(watch: Watch) -> Event:
    event = await asyncio.wait_for(watch.next(), PATIENCE)
    assert event is not None
    return event


def words(event: Event) -> str:
    if isinstance(event, Changed):
        return f"+{event.view.id}"
    return f"-{event.model_id}" if isinstance(event, Removed) else "synced"


async def rest(watch: Watch) -> list[str]:
    """Returns all events that a watch has pending."""
    found = []
    while not (task := asyncio.ensure_future(watch.next())).done():
        await asyncio.sleep(0)
        if not task.done():
            task.cancel()
            break
        event = task.result()
        assert event is not None
        found.append(words(event))
    return found


async def test_a_watch_sends_all_models_then_a_mark_then_changes(
    catalog: Catalog, registrations: Registrations
) -> None:
    for model_id in ("b", "a"):
        await registrations.add(desired(model_id), "")
    with catalog.watchers.watch(None, statuses=False) as watch:
        assert await rest(watch) == ["+a", "+b", "synced"]
        c = await registrations.add(desired("c"), "")
        assert await rest(watch) == ["+c"]
        await registrations.change(c, lambda old: replace(old, desired=replace(old.desired, unloads=1)))
        assert await rest(watch) == ["+c"]
        await registrations.remove(registrations.get("a"))
        assert await rest(watch) == ["-a"]


async def test_a_waiting_watch_wakes(catalog: Catalog, registrations: Registrations) -> None:
    with catalog.watchers.watch(None, statuses=False) as watch:
        assert isinstance(await soon(watch), Synced)
        waiting = asyncio.create_task(watch.next())
        await asyncio.sleep(0)
        await registrations.add(desired("m"), "")
        event = await asyncio.wait_for(waiting, PATIENCE)
        assert isinstance(event, Changed)
        assert event.view.desired.manifest.primary == "m.gguf"


async def test_only_the_latest_of_a_model_waits_for_a_slow_watcher(
    catalog: Catalog, registrations: Registrations
) -> None:
    model = await registrations.add(desired("m"), "")
    with catalog.watchers.watch(None, statuses=True) as slow, catalog.watchers.watch(None, statuses=True) as quick:
        assert [await rest(slow), await rest(quick)] == [["+m", "synced"]] * 2
        for number in range(1, 6):
            model = await registrations.change(
                model, lambda old: replace(old, desired=replace(old.desired, unloads=old.desired.unloads + 1))
            )
            assert await rest(quick) == ["+m"], number
        event = await soon(slow)
        assert isinstance(event, Changed)
        assert event.view.desired.unloads == 5
        assert await rest(slow) == []


async def test_a_watcher_that_never_reads_holds_no_more_than_there_are_models(
    catalog: Catalog, registrations: Registrations
) -> None:
    await registrations.add(desired("stays"), "")
    with catalog.watchers.watch(None, statuses=True) as watch:
        for number in range(20):
            await registrations.remove(await registrations.add(desired(f"m{number}"), ""))
        assert len(watch._pending) == 1
        assert await rest(watch) == ["+stays", "synced"]


async def test_re_registered_model_is_sent_as_removed_first(catalog: Catalog, registrations: Registrations) -> None:
    """The new files may differ under the same id and generation."""
    with catalog.watchers.watch(None, statuses=False) as watch:
        first = await registrations.add(desired("m"), "")
        assert await rest(watch) == ["synced", "+m"]
        await registrations.remove(first)
        await registrations.add(desired("m"), "")
        assert await rest(watch) == ["-m", "+m"]


async def test_model_removed_during_the_snapshot_is_not_sent(catalog: Catalog, registrations: Registrations) -> None:
    for model_id in ("a", "b", "c"):
        await registrations.add(desired(model_id), "")
    with catalog.watchers.watch(None, statuses=False) as watch:
        assert words(await soon(watch)) == "+a"
        await registrations.remove(registrations.get("b"))
        await registrations.remove(registrations.get("a"))
        await registrations.add(desired("d"), "")
        assert await rest(watch) == ["+c", "synced", "-a", "+d"]


async def test_a_watch_of_one_modality(catalog: Catalog, registrations: Registrations) -> None:
    audio = facts("a", modality="audio", format="whisper")
    await registrations.add(desired("a", facts=audio), "")
    await registrations.add(desired("t"), "")
    with catalog.watchers.watch("text", statuses=False) as watch:
        assert await rest(watch) == ["+t", "synced"]
        await registrations.remove(registrations.get("a"))
        assert await rest(watch) == []
        await registrations.remove(registrations.get("t"))
        await registrations.add(desired("t", facts=facts("t", modality="audio", format="whisper")), "")
        assert await rest(watch) == ["-t"], "the same id, for another service"


async def test_reports_are_news_only_for_those_who_want_them(catalog: Catalog, registrations: Registrations) -> None:
    await registrations.add(desired("m"), "")
    await registrations.add(desired("n"), "")
    with catalog.watchers.watch(None, statuses=True) as all_, catalog.watchers.watch(None, statuses=False) as few:
        assert [await rest(all_), await rest(few)] == [["+m", "+n", "synced"]] * 2
        catalog.report(WHOLE)
        assert [await rest(all_), await rest(few)] == [["+m", "+n"], []]  # now pending
        loading = Status(state="downloading", generation=1, done_bytes=1, total_bytes=5)
        catalog.report(replace(WHOLE, complete=False, statuses={"m": loading}))
        assert [await rest(all_), await rest(few)] == [["+m"], []]
        catalog.report(replace(WHOLE, complete=False, statuses={"m": READY}))
        assert [await rest(all_), await rest(few)] == [["+m"], ["+m"]], "there is a ready replica more"
        catalog.report(replace(WHOLE, complete=False, statuses={"m": replace(READY, state="loaded")}))
        assert [await rest(all_), await rest(few)] == [["+m"], []]
        catalog.report(replace(WHOLE, complete=False, statuses={"m": replace(READY, state="loaded")}))
        assert [await rest(all_), await rest(few)] == [[], []]
        catalog.report(replace(WHOLE, complete=False, leaving=True))
        assert [await rest(all_), await rest(few)] == [["+m", "+n"], ["+m"]]


async def test_watches_end_with_the_catalog(catalog: Catalog) -> None:
    with catalog.watchers.watch(None, statuses=False) as watch:
        assert await rest(watch) == ["synced"]
        waiting = asyncio.create_task(watch.next())
        await asyncio.sleep(0)
        catalog.watchers.close()
        assert await asyncio.wait_for(waiting, PATIENCE) is None
    with catalog.watchers.watch(None, statuses=False) as late:
        assert await late.next() is None


async def test_watches_are_limited(catalog: Catalog) -> None:
    with ExitStack() as open_ones:
        for _ in range(MAX_WATCHERS):
            open_ones.enter_context(catalog.watchers.watch(None, statuses=False))
        with (
            pytest.raises(Overloaded, match=f"{MAX_WATCHERS} watches of models are open"),
            catalog.watchers.watch(None, statuses=False),
        ):
            pass
    with catalog.watchers.watch(None, statuses=False):
        pass
