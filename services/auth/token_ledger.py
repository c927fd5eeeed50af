"""Recent usage per key, shared by replicas: in a SQLite file by those of one host, or in a Redis by those of many."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from services.auth.token_rates import Spent
from services.storage import SharedSqliteFile

VERSION = 1
SCHEMA = "CREATE TABLE used (subject TEXT PRIMARY KEY, tokens REAL NOT NULL, at REAL NOT NULL) WITHOUT ROWID"
KEPT_SECONDS = 86_400.0  # keys without a request for so long are forgotten


class TokenFile(SharedSqliteFile):
    """A TokenLedger in a file. Times are the host's, in seconds since the epoch."""

    application_id = 0x616C7472  # `altr`
    noun = "count of tokens"
    remedy = "move it away: only the count of the last minute is lost"
    busy_milliseconds = 1000
    clock: Callable[[], float] = staticmethod(time.time)

    @classmethod
    async def open(cls, path: Path) -> TokenFile:
        """Opens or creates the file. Raises DatabaseUnusable."""
        file = cls(path, "token-rates", SCHEMA, VERSION)
        await file._opened()
        return file

    async def exchange(self, spent: Sequence[Spent]) -> list[float]:
        """See TokenLedger. Raises Internal if the file cannot be used."""
        return await self.write(lambda connection: _exchange(connection, spent, self.clock()))


def _exchange(connection: sqlite3.Connection, spent: Sequence[Spent], now: float) -> list[float]:
    found = [_add(connection, each, now) for each in spent]
    connection.execute("DELETE FROM used WHERE at < ?", (now - KEPT_SECONDS,))
    return found


def _add(connection: sqlite3.Connection, spent: Spent, now: float) -> float:
    row = connection.execute("SELECT tokens, at FROM used WHERE subject = ?", (spent.subject,)).fetchone()
    tokens, at = row or (0.0, now)
    # A clock that was set back must not stop the drain.
    used = max(0.0, tokens - max(0.0, now - at) * spent.per_minute / 60) + spent.tokens
    if used or row:
        connection.execute("INSERT OR REPLACE INTO used VALUES (?, ?, ?)", (spent.subject, used, now))
    return float(used)


CALL_SECONDS = 2.0
PREFIX = "allm:1:used:"
REQUESTS_PREFIX = "allm:1:asked:"

# ARGV: tokens per minute and tokens, for each of KEYS in turn.
EXCHANGE = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local found = {}
for place, key in ipairs(KEYS) do
  local rate, more = tonumber(ARGV[2 * place - 1]) / 60, tonumber(ARGV[2 * place])
  local row = redis.call('HMGET', key, 'tokens', 'at')
  local used, at = tonumber(row[1]) or 0, tonumber(row[2]) or now
  used = math.max(0, used - math.max(0, now - at) * rate) + more
  if used > 0 then
    redis.call('HSET', key, 'tokens', string.format('%.6f', used), 'at', string.format('%.6f', now))
    redis.call('PEXPIRE', key, math.ceil(used / rate * 1000) + 1000)
  end
  found[place] = string.format('%.6f', used)
end
return found
"""


class TokenRedis:
    """A TokenLedger in Redis.

    One hash per key, `allm:1:used:ID` for tokens and `allm:1:asked:ID` for requests, which expires once everything has
    drained. Times are Redis' own.
    """

    def __init__(self, url: str, prefix: str = PREFIX) -> None:
        """Connects at the first use.

        Raises ImportError without redis-py, and ValueError or TypeError for a URL that it does not know.
        """
        from redis.asyncio import Redis  # noqa: PLC0415 (an extra of its own)

        self._redis = Redis.from_url(
            url, socket_timeout=None, socket_connect_timeout=CALL_SECONDS, client_name="allm-rates"
        )
        self._prefix = prefix
        self._script = self._redis.register_script(EXCHANGE)

    async def exchange(self, spent: Sequence[Spent]) -> list[float]:
        """See TokenLedger. Raises RedisError, OSError or TimeoutError if Redis cannot be used."""
        keys = [self._prefix + each.subject for each in spent]
        values = [value for each in spent for value in (each.per_minute, f"{each.tokens:.6f}")]
        async with asyncio.timeout(CALL_SECONDS):
            found = await self._script(keys=keys, args=values)
        return [float(value) for value in found]

    async def close(self) -> None:
        """Closes the connections."""
        await self._redis.aclose()
