"""The token ledgers that replicas share: a SQLite file of the host, and a real Redis."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from services.auth.authentication import RATES_NAME, Authenticator
from services.auth.token_ledger import KEPT_SECONDS, PREFIX, TokenFile, TokenRedis
from services.auth.token_rates import Spent, TokenLedger, TokenRates
from services.errors import RateLimited
from services.settings.settings import load_settings
from services.storage import DatabaseUnusable
from tests.identities import ann, write_keys
from tests.redis_server import RedisServer

REDIS = pytest.param("redis", marks=pytest.mark.slow)
SLOW = 6  # tokens per minute: 0.1 per second, so that little drains during a test
EXCHANGES = 50
_OTHER = """
import asyncio, sys
from pathlib import Path
from services.auth.token_ledger import TokenFile
from services.auth.token_rates import Spent

async def main():
    file = await TokenFile.open(Path(sys.argv[1]))
    for _ in range(int(sys.argv[2])):
        await file.exchange([Spent("ann", 6, 1000.0)])
    await file.close()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path_factory.mktemp("redis"))
    yield running
    running.kill()


@pytest.fixture(params=["file", REDIS])
async def two(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[TokenLedger, TokenLedger]]:
    """Yields two replicas' connections to one ledger."""
    ledgers: list[TokenLedger]
    if request.param == "file":
        ledgers = [await TokenFile.open(tmp_path / "rates.db") for _ in range(2)]
    else:
        server: RedisServer = request.getfixturevalue("server")
        with server.connect() as connection:
            connection.flushall()
        ledgers = [TokenRedis(server.url) for _ in range(2)]
    yield ledgers[0], ledgers[1]
    for ledger in ledgers:
        await ledger.close()


async def test_processes_see_each_others_counts(two: tuple[TokenLedger, TokenLedger]) -> None:
    one, other = two
    assert await one.exchange([Spent("ann", SLOW, 700), Spent("bob", SLOW, 0)]) == [700, 0]
    ann, bob, carol = await other.exchange([Spent("ann", SLOW, 50), Spent("bob", SLOW, 5), Spent("carol", SLOW, 0)])
    assert (ann, bob, carol) == (pytest.approx(750, abs=20), 5, 0)
    assert await one.exchange([]) == []


async def test_it_drains_at_the_rate_and_never_below_nothing(two: tuple[TokenLedger, TokenLedger]) -> None:
    one, other = two
    await one.exchange([Spent("ann", 60_000, 1_000_000)])  # 1000 per second
    before = (await other.exchange([Spent("ann", 60_000, 0)]))[0]
    assert 900_000 < before <= 1_000_000
    deadline = time.monotonic() + 60
    while (await one.exchange([Spent("ann", 60_000, 0)]))[0] >= before:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    await one.exchange([Spent("bob", 60_000_000, 10)])
    await asyncio.sleep(0.01)
    assert await other.exchange([Spent("bob", 60_000_000, 0)]) == [0]


async def test_many_at_once_lose_nothing(two: tuple[TokenLedger, TokenLedger]) -> None:
    await asyncio.gather(*(ledger.exchange([Spent("ann", SLOW, 1000)]) for ledger in two for _ in range(EXCHANGES)))
    (used,) = await two[0].exchange([Spent("ann", SLOW, 0)])
    assert used == pytest.approx(2000 * EXCHANGES, abs=50)


async def test_two_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rates.db"
    command = (sys.executable, "-c", _OTHER, str(path), str(EXCHANGES))
    others = [await asyncio.create_subprocess_exec(*command) for _ in range(2)]
    assert [await other.wait() for other in others] == [0, 0]
    file = await TokenFile.open(path)
    (used,) = await file.exchange([Spent("ann", SLOW, 0)])
    assert used == pytest.approx(2000 * EXCHANGES, abs=50)
    assert path.stat().st_mode & 0o777 == 0o600
    await file.close()


async def test_a_clock_that_is_set_back_only_stops_the_drain_for_a_moment(tmp_path: Path) -> None:
    file = await TokenFile.open(tmp_path / "rates.db")
    now = 1_000_000.0
    file.clock = lambda: now
    await file.exchange([Spent("ann", 60, 100)])
    now -= 3600
    assert await file.exchange([Spent("ann", 60, 0)]) == [100]
    now += 40
    assert await file.exchange([Spent("ann", 60, 0)]) == [60]
    await file.close()


async def test_unused_keys_are_forgotten(tmp_path: Path) -> None:
    file = await TokenFile.open(tmp_path / "rates.db")
    now = 1_000_000.0
    file.clock = lambda: now
    await file.exchange([Spent("ann", 60, 100)])
    now += KEPT_SECONDS + 1
    await file.exchange([Spent("bob", 60, 1)])
    assert await file.read(lambda connection: connection.execute("SELECT subject FROM used").fetchall()) == [("bob",)]
    await file.close()


async def test_another_file_is_refused_and_inference_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "rates.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()
    with pytest.raises(DatabaseUnusable, match="is not allm's count of tokens: move it away"):
        await TokenFile.open(path)
    rates = TokenRates(lambda: TokenFile.open(path))
    await rates.admit("ann", SLOW)
    await rates.close()


@pytest.mark.slow
async def test_drained_buckets_leave_nothing_in_redis(server: RedisServer) -> None:
    ledger = TokenRedis(server.url)
    await ledger.exchange([Spent("dora", 60, 30)])
    with server.connect() as connection:
        assert 0 < connection.pttl(f"{PREFIX}dora") <= 31_000
    await ledger.exchange([Spent("emil", 60, 0)])
    with server.connect() as connection:
        assert not connection.exists(f"{PREFIX}emil")
    await ledger.close()


@pytest.mark.slow
async def test_a_redis_that_goes_and_comes_back(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    url = server.url

    async def open_ledger() -> TokenLedger:
        return TokenRedis(url)

    one, other = TokenRates(open_ledger), TokenRates(open_ledger)
    try:
        await one.admit("ann", SLOW)
        server.kill()
        one.charge("ann", SLOW, 1000)
        async with asyncio.timeout(60):
            await one.admit("bob", SLOW)  # still answers
        server.start()
        deadline = time.monotonic() + 60
        while True:
            with server.connect() as connection:
                if connection.exists(f"{PREFIX}ann"):
                    break
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
    finally:
        await one.close()
        await other.close()
        server.kill()


@pytest.mark.parametrize("where", ["file", REDIS])
async def test_a_service_counts_where_its_settings_say(
    tmp_path: Path, where: str, request: pytest.FixtureRequest
) -> None:
    write_keys(tmp_path)
    url = request.getfixturevalue("server").url if where == "redis" else ""
    settings = load_settings({"ALLM_HOME": str(tmp_path), "ALLM_AUTH": "keys", "ALLM_REDIS_URL": url})
    one, other = Authenticator.of(settings), Authenticator.of(settings)
    known = dict(ann(tokens=SLOW))
    caller = one.authenticate(known)
    await caller.admit()
    caller.spend(1000)
    await one.close()  # writes the remaining counts
    with pytest.raises(RateLimited):
        await other.authenticate(known).admit()
    await other.close()
    assert (tmp_path / RATES_NAME).exists() == (where == "file")
