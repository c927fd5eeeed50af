"""Recent token usage per key, in a SQLite file that the services of one host share."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from services.auth.token_rates import Spent
from services.storage.sqlite_file import SharedSqliteFile

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
