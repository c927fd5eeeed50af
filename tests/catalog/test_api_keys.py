"""API keys: the stored fields, retention, and refusals."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from services.auth.key_format import PREFIX, key_hash
from services.catalog.api_keys import (
    KEPT_SECONDS,
    MAX_KEYS,
    MAX_WATCHERS,
    ApiKeys,
    KeyEvent,
    KeyRemoved,
    KeysAdded,
    KeysSynced,
    KeyWatch,
    NewKey,
)
from services.catalog.database import MIGRATIONS, CatalogDatabase
from services.errors import InvalidRequest, KeyNotFound, Overloaded
from tests.case import case

NOW = 1_800_000_000
PATIENCE = 60.0  # seconds


class Clock:
    """A clock in seconds since the epoch that only tests advance."""

    now = float(NOW)

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def opened(home: Path, clock: Clock | None = None) -> AsyncIterator[ApiKeys]:
    database = await CatalogDatabase.open(home / "catalog.db", MIGRATIONS)
    keys = await ApiKeys.load(database, clock or Clock())
    try:
        yield keys
    finally:
        await keys.close()
        await database.close()


async def event(watch: KeyWatch) -> KeyEvent | None:
    return await asyncio.wait_for(watch.next(), PATIENCE)


async def test_a_key_is_given_away_once_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as keys:
        made, secret = await keys.create(NewKey(name="ann"))
        assert secret.startswith(PREFIX)
        assert len(secret) == len(PREFIX) + 43
        assert re.fullmatch("key_[0-9a-f]{16}", made.id)
        assert (made.hash, made.hint) == (key_hash(secret), f"{secret[:12]}...")
        assert (made.scopes, made.models, made.created, made.expires) == (("inference",), (), NOW, 0)
        assert secret not in repr(made)
    files = [path.read_bytes() for path in tmp_path.iterdir()]  # noqa: ASYNC240 - a small folder
    assert not [content for content in files if secret.encode() in content or secret[12:].encode() in content]


async def test_no_two_keys_are_the_same(tmp_path: Path) -> None:
    async with opened(tmp_path) as keys:
        made = [await keys.create(NewKey(name="same")) for _ in range(50)]
        assert len({secret for _, secret in made}) == len({key.id for key, _ in made}) == 50
        assert [key.id for key in keys.all()] == [key.id for key, _ in made], "the oldest first"


async def test_everything_is_there_after_a_restart_in_the_same_order(tmp_path: Path) -> None:
    async with opened(tmp_path) as keys:
        wanted = NewKey(
            name="a",
            scopes=("admin", "inference"),
            models=("m", "llama*"),
            requests_per_minute=3,
            tokens_per_minute=4,
            concurrent_requests=5,
            bytes_in_flight=6,
            stored_bytes=7,
            expires=NOW + 9,
        )
        await keys.create(wanted)
        second, _ = await keys.create(NewKey(name="b"))
        await keys.revoke(second.id)
        before = keys.all()
    async with opened(tmp_path) as keys:
        assert keys.all() == before
        first = keys.all()[0]
        assert (first.scopes, first.models, first.expires) == (("inference", "admin"), ("m", "llama*"), NOW + 9)
        assert (first.requests_per_minute, first.tokens_per_minute, first.concurrent_requests) == (3, 4, 5)
        assert (first.bytes_in_flight, first.stored_bytes) == (6, 7)


async def test_revoking(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock) as keys:
        made, _ = await keys.create(NewKey(name="a"))
        clock.now += 5
        revoked = await keys.revoke(made.id)
        assert revoked.revoked == NOW + 5
        clock.now += 5
        assert await keys.revoke(made.id) == revoked, "again, nothing happens"
        for unknown in ("", "key_0000000000000000", "x" * 1000):
            with pytest.raises(KeyNotFound) as raised:
                await keys.revoke(unknown)
            assert raised.value.param == "id"


async def test_invalid_values_are_refused_by_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    for field, value in [
        ("name", ""),
        ("name", "x" * 129),
        ("name", "a\nb"),
        ("scopes", ("service",)),
        ("scopes", ("inference", "root")),
        ("models", ("m",) * 65),
        ("models", ("m" * 128,) * 16),
        ("models", ("",)),
        ("models", ("a b",)),
        ("models", ("a*b",)),
        ("models", ("**",)),
        ("models", ("a,b",)),
        ("models", ("ä",)),
        ("requests_per_minute", -1),
        ("requests_per_minute", 2**31),
        ("tokens_per_minute", -1),
        ("concurrent_requests", -1),
        ("bytes_in_flight", -1),
        ("stored_bytes", 2**53),
        ("tokens_per_minute", 2**53),
        ("expires", NOW),
        ("expires", 1),
    ]:
        with case(field=field, value=value):
            tmp_path = tmp_path_factory.mktemp("case")
            async with opened(tmp_path) as keys:
                with pytest.raises(InvalidRequest) as raised:
                    await keys.create(NewKey(**({"name": "a"} | {field: value})))
                assert raised.value.param == ("expire_time" if field == "expires" else field)
                assert raised.value.param in raised.value.message
                assert keys.all() == []


@pytest.mark.parametrize("models", [("m",), ("*",), ("org/llama-3:8b@q4+x",), ("llama*", "llama*"), ("m" * 31,) * 64])
async def test_lists_of_models(tmp_path: Path, models: tuple[str, ...]) -> None:
    async with opened(tmp_path) as keys:
        made, _ = await keys.create(NewKey(name="a", models=models))
        assert made.models == tuple(dict.fromkeys(models))


async def test_requests_that_ended_long_ago_are_forgotten(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock) as keys:
        old, _ = await keys.create(NewKey(name="revoked"))
        await keys.create(NewKey(name="expired", expires=NOW + 10))
        await keys.create(NewKey(name="expires late", expires=NOW + KEPT_SECONDS))
        await keys.create(NewKey(name="of use"))
        await keys.revoke(old.id)
        clock.now += KEPT_SECONDS
        await keys.create(NewKey(name="new"))
        assert next(key.name for key in keys.all()) == "revoked", "for 90 days it is still listed"
        clock.now += 11
        await keys.create(NewKey(name="newer"))
        assert [key.name for key in keys.all()] == ["expires late", "of use", "new", "newer"]
    clock.now += KEPT_SECONDS
    async with opened(tmp_path, clock) as keys:
        assert [key.name for key in keys.all()] == ["of use", "new", "newer"]


async def test_keys_have_an_end(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock) as keys:
        await keys.create(NewKey(name="first", expires=NOW + 5))
        some = keys.all()[0]
        for number in range(MAX_KEYS - 1):
            keys._keys[f"key_{number}"] = some
        with pytest.raises(InvalidRequest, match="revoke some"):
            await keys.create(NewKey(name="one too many"))
        clock.now += 5
        await keys.create(NewKey(name="those that have expired do not count"))


async def test_a_caller_who_gives_up_leaves_no_half_made_key(tmp_path: Path) -> None:
    async with opened(tmp_path) as keys:
        giving_up = asyncio.create_task(keys.create(NewKey(name="a")))
        await asyncio.sleep(0)
        giving_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await giving_up
        await keys._changes.close()
        known = [key.id for key in keys.all()]
    async with opened(tmp_path) as keys:
        assert [key.id for key in keys.all()] == known


async def test_the_database_refuses_an_invalid_hash(tmp_path: Path) -> None:
    async with opened(tmp_path) as keys:
        with pytest.raises(sqlite3.IntegrityError):
            await keys._database.write(
                lambda connection: connection.execute(
                    "INSERT INTO api_keys VALUES ('key_1', x'00', '', '', '[]', '[]', 0, 0, 0, 0, 0, 0, 0, 0)"
                )
            )


async def test_watching(tmp_path: Path) -> None:
    async with opened(tmp_path) as keys:
        first, _ = await keys.create(NewKey(name="a"))
        gone, _ = await keys.create(NewKey(name="b"))
        await keys.revoke(gone.id)
        with keys.watchers.watch() as watch:
            assert await event(watch) == KeysAdded((first,))
            assert await event(watch) == KeysSynced()
            second, _ = await keys.create(NewKey(name="c"))
            assert await event(watch) == KeysAdded((second,))
            await keys.revoke(first.id)
            assert await event(watch) == KeyRemoved(first.id)
            third, _ = await keys.create(NewKey(name="d"))
            await keys.revoke(third.id)
            fourth, _ = await keys.create(NewKey(name="e"))
            assert await event(watch) == KeysAdded((fourth,)), "of what came and went nobody hears"
            waiting = asyncio.create_task(watch.next())
            await asyncio.sleep(0)
            keys.watchers.close()
            assert await asyncio.wait_for(waiting, PATIENCE) is None


async def test_revocation_does_not_wait_for_a_slow_snapshot(tmp_path: Path) -> None:
    async with opened(tmp_path) as keys:
        made = [(await keys.create(NewKey(name=f"k{number}")))[0] for number in range(3)]
        more = {f"key_{number}": made[0] for number in range(1500)}
        keys._keys.update(more)
        with keys.watchers.watch() as watch:
            heard = await event(watch)
            assert isinstance(heard, KeysAdded)
            assert len(heard.keys) == 500
            await keys.revoke(made[0].id)
            assert await event(watch) == KeyRemoved(made[0].id)
            assert isinstance(await event(watch), KeysAdded)


async def test_watchers_have_an_end_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as keys:
        with ExitStack() as open_ones:
            for _ in range(MAX_WATCHERS):
                open_ones.enter_context(keys.watchers.watch())
            with pytest.raises(Overloaded, match="watches of keys"), keys.watchers.watch():
                pass
        with keys.watchers.watch():
            pass
