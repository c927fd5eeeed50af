"""Both stores, a SQLite file and a real Redis, for tests that hold for either."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from services.text.responses.redis_store import RedisResponseStore
from services.text.responses.sqlite_store import SqliteResponseStore
from services.text.responses.store import ResponseStore
from tests.redis_server import RedisServer
from tests.text.responses.store_clock import Clock, OpenStore


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def empty_redis(redis_server: RedisServer) -> RedisServer:
    connection = redis_server.connect()
    connection.flushall()
    connection.close()
    return redis_server


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.slow)])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> OpenStore:
    """Returns a function that opens the store again, as another replica does. The caller closes it."""
    server = request.getfixturevalue("empty_redis") if request.param == "redis" else None

    async def open_one() -> ResponseStore:
        if server:
            return RedisResponseStore(server.url, 30, clock)
        return await SqliteResponseStore.open(tmp_path / "responses.db", 30, clock, ticks=clock)

    return open_one


@pytest.fixture
async def store(open_store: OpenStore) -> AsyncIterator[ResponseStore]:
    found = await open_store()
    yield found
    await found.close()


@pytest.fixture
async def other(open_store: OpenStore, store: ResponseStore) -> AsyncIterator[ResponseStore]:
    """The same store, as another replica opens it."""
    found = await open_store()
    yield found
    await found.close()
