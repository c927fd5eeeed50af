"""The key table follows a real catalog: new keys, revoked keys, and changes during an outage."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from allm.keys.v1 import keys_pb2_grpc

from services.authorizer.key_follower import OPTIONS, KeyFollower
from services.authorizer.key_table import KeyTable
from services.catalog.api.keys_servicer import KeyServicer
from services.catalog.api_keys import MAX_KEYS, ApiKey, ApiKeys, NewKey
from services.catalog.database import MIGRATIONS, CatalogDatabase

PATIENCE = 60.0  # seconds


@asynccontextmanager
async def catalog(home: Path, address: str) -> AsyncIterator[ApiKeys]:
    """Serves the key part of the catalog as long as the block runs."""
    database = await CatalogDatabase.open(home / "catalog.db", MIGRATIONS)
    keys = await ApiKeys.load(database)
    server = grpc.aio.server(options=[("grpc.http2.max_ping_strikes", 0)])
    keys_pb2_grpc.add_KeyServiceServicer_to_server(KeyServicer(keys), server)
    server.add_insecure_port(address)
    await server.start()
    try:
        yield keys
    finally:
        await keys.close()
        await server.stop(0)
        await database.close()


@asynccontextmanager
async def following(address: str) -> AsyncIterator[KeyTable]:
    table = KeyTable()
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        task = asyncio.create_task(KeyFollower(channel, table).follow())
        try:
            yield table
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - a table has no events
            await asyncio.sleep(0.005)


@pytest.fixture
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="keys-") as folder:  # a socket path must be short
        yield f"unix:{folder}/s"


async def test_keys_come_and_go(tmp_path: Path, address: str) -> None:
    async with catalog(tmp_path, address) as keys:
        made, secret = await keys.create(
            NewKey(
                name="a",
                models=("m*",),
                requests_per_minute=3,
                concurrent_requests=2,
                bytes_in_flight=5,
                stored_bytes=6,
                expires=2**40,
            )
        )
        async with following(address) as table:
            await until(lambda: table.loaded)
            found = table.find(secret)
            assert found
            assert (found.id, found.scopes, found.models) == (made.id, ("inference",), ("m*",))
            assert (found.requests_per_minute, found.tokens_per_minute, found.expires) == (3, 0, 2**40)
            assert (found.concurrent_requests, found.bytes_in_flight, found.stored_bytes) == (2, 5, 6)
            _, later = await keys.create(NewKey(name="b", scopes=("admin", "inference")))
            await until(lambda: table.find(later) is not None)
            await keys.revoke(made.id)
            await until(lambda: table.find(secret) is None)
            assert len(table) == 1


async def test_an_empty_key_list_is_valid(tmp_path: Path, address: str) -> None:
    async with catalog(tmp_path, address), following(address) as table:
        await until(lambda: table.loaded)
        assert len(table) == 0


async def test_known_keys_stay_valid_without_the_catalog_and_are_updated_later(
    tmp_path: Path, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(address) as table:
        await until(lambda: "sends no keys" in caplog.text)
        assert not table.loaded
        async with catalog(tmp_path, address) as keys:
            first, kept = await keys.create(NewKey(name="a"))
            second, lost = await keys.create(NewKey(name="b"))
            await until(lambda: len(table) == 2)
            caplog.clear()
        await until(lambda: "sends no keys" in caplog.text)
        assert table.find(kept)
        async with catalog(tmp_path, f"{address}-elsewhere") as keys:  # revoked where this table cannot see it
            await keys.revoke(second.id)
        assert table.find(lost)
        async with catalog(tmp_path, address) as keys:
            assert [key.id for key in keys.all()] == [first.id, second.id]
            await until(lambda: table.find(lost) is None)
            assert table.find(kept)
    assert kept not in caplog.text


class Wire:
    """A proxy to a Unix socket that can stop forwarding, like a machine that is gone."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._ways: set[asyncio.Task[None]] = set()
        self.passing = asyncio.Event()
        self.passing.set()

    @asynccontextmanager
    async def listening(self, path: str) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._accept, path)
        try:
            yield
        finally:
            server.close()
            for way in self._ways:
                way.cancel()
            await asyncio.gather(*self._ways, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ways.add(asyncio.create_task(self._connect(reader, writer)))

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._target)
        try:
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        finally:
            for end in (back, writer):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                await self.passing.wait()
                writer.write(chunk)
                await writer.drain()
            writer.close()


async def test_a_catalog_that_falls_silent_is_noticed(
    tmp_path: Path, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection stays open, but nobody answers pings."""
    wire = Wire(address.removeprefix("unix:"))
    async with catalog(tmp_path, address) as keys, wire.listening(f"{address.removeprefix('unix:')}-wire"):
        made, secret = await keys.create(NewKey(name="a"))
        async with following(f"{address}-wire") as table:
            await until(lambda: table.find(secret) is not None)
            wire.passing.clear()
            await keys.revoke(made.id)
            await until(lambda: "sends no keys" in caplog.text)
            assert table.find(secret), "nobody could say that it is no more"
            wire.passing.set()
            await until(lambda: table.find(secret) is None)


async def test_the_maximum_number_of_keys(tmp_path: Path, address: str) -> None:
    """At the limit, one event delivers all keys, and a lookup does not scan the others."""
    async with catalog(tmp_path, address) as keys:
        made, secret = await keys.create(NewKey(name="real"))
        more = {f"key_{number:016x}": _copy(made, number) for number in range(MAX_KEYS - 1)}
        keys._keys.update(more)
        async with following(address) as table:
            await until(lambda: table.loaded)
            assert len(table) == MAX_KEYS
            assert table.find(secret)


def _copy(key: ApiKey, number: int) -> ApiKey:
    return replace(key, id=f"key_{number:016x}", hash=number.to_bytes(32, "big"))
