"""The machine's samples on disk: restored after a restart, bounded, and skipped if they cannot be read."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio

from services.catalog.database import MIGRATIONS, CatalogDatabase
from services.catalog.machine import Load, Machine, Percentiles, Sample, Traffic
from services.catalog.machine_samples import MachineSamples
from services.catalog.machine_watch import MachineWatchers
from services.telemetry.figures import Event
from tests.catalog.catalog_service import Clock
from tests.catalog.reported_figures import device, host

NOW = 1_700_000_000.0


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[CatalogDatabase]:
    opened = await CatalogDatabase.open(tmp_path / "c.db", MIGRATIONS)
    yield opened
    await opened.close()


def sample(at: float) -> Sample:
    """Returns a sample with every kind of field."""
    load = Load(running=1, waiting=0, rates={"requests": 0.5}, times={"request": Percentiles(1.0, 2.0, 3.0, 4)})
    text = Traffic(
        modality="text",
        replicas=2,
        running=1,
        waiting=3,
        rates={"generated_tokens": 1.5},
        times={"first_output": Percentiles(0.1, 0.2, 0.2, 2)},
        models={"m": load},
    )
    events = (Event(at=at, kind="evicted", model="m", replica="text-1", reason="pressure"),)
    return Sample(at=at, hosts=(host(devices=(device(),)),), traffic=(text,), events=events)


def stored(database: CatalogDatabase, now: float = NOW) -> MachineSamples:
    return MachineSamples(database, lambda: now)


def count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM machine_samples").fetchone()[0])


async def test_samples_come_back_as_they_were(database: CatalogDatabase) -> None:
    samples = [sample(NOW - 4), sample(NOW - 2)]
    await stored(database).save(samples, NOW - 4)
    assert await stored(database).load(900) == samples
    assert await stored(database).load(3) == samples[1:]
    assert await stored(database, NOW + 898).load(900) == samples[1:], "the others are too old"
    assert await stored(database, NOW - 3).load(900) == samples[:1], "a clock that was set back has no future"


async def test_old_samples_and_those_of_the_future_are_deleted(database: CatalogDatabase) -> None:
    await stored(database).save([sample(NOW + each) for each in (0, 2, 4, 1000)], NOW)
    await stored(database).save([sample(NOW + 6)], NOW + 2)
    assert [each.at for each in await stored(database, NOW + 2000).load(2000)] == [NOW + 2, NOW + 4, NOW + 6]
    assert await database.read(count) == 3
    await stored(database).save([], NOW + 900)
    assert await database.read(count) == 3


async def test_samples_of_another_version_are_skipped(database: CatalogDatabase) -> None:
    await stored(database).save([sample(NOW - 2)], NOW - 2)
    foreign = [(NOW * 1000 + number, text) for number, text in ((-1, "{"), (-3, '{"at": "now"}'))]
    await database.write(lambda c: c.executemany("INSERT INTO machine_samples VALUES (?, ?)", foreign))
    assert await stored(database).load(900) == [sample(NOW - 2)]


async def test_every_schema_gets_the_table(tmp_path: Path) -> None:
    for version in range(len(MIGRATIONS)):
        path = tmp_path / f"{version}.db"
        await (await CatalogDatabase.open(path, MIGRATIONS[:version])).close()
        database = await CatalogDatabase.open(path, MIGRATIONS)
        await stored(database).save([sample(NOW)], NOW)
        await database.close()
        with closing(sqlite3.connect(path)) as connection:
            assert count(connection) == 1


async def test_the_next_catalog_goes_on_with_the_history(database: CatalogDatabase) -> None:
    samples = stored(database)
    first = MachineWatchers(Machine(Clock(), lambda: NOW), [sample(NOW - 800)], samples)
    first.tick()
    await first.close()
    assert await database.read(count) >= 1
    past = await samples.load(900)
    assert past[-1].at == NOW
    second = MachineWatchers(Machine(Clock(), lambda: NOW + 60), past, samples)
    second.tick()
    history = second.history
    times = {history[number].at for number in range(history.begin, history.end)}
    assert {NOW, NOW + 60} <= times
    await second.close()
    assert [each.at for each in await stored(database, NOW + 61).load(900)] == sorted(times)


async def test_a_disk_that_fails_ends_nothing(database: CatalogDatabase, caplog: pytest.LogCaptureFixture) -> None:
    watchers = MachineWatchers(Machine(Clock(), lambda: NOW), stored=stored(database))
    watchers.tick()
    await database.write(lambda connection: connection.execute("ALTER TABLE machine_samples RENAME TO away"))
    await watchers.save()
    assert "the machine's samples cannot be saved" in caplog.text
    await database.write(lambda connection: connection.execute("ALTER TABLE away RENAME TO machine_samples"))
    await watchers.save()
    assert await stored(database).load(900)
    await watchers.close()
