"""Stored responses in a SQLite file, which the text replicas of one host share.

Every write is a transaction. Items are stored separately from their response, so that each is written once.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import msgspec

from services.storage import SharedSqliteFile
from services.text.responses import store
from services.text.responses.conversations import ConversationStore
from services.text.responses.response import Event, Item, Response
from services.text.responses.sqlite_conversations import SqliteConversations
from services.text.responses.store import body_of, encode, event_of, item_of, response_of

VERSION = 1
# Heartbeats are seconds of the host's monotonic clock.
SCHEMA = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY,
    client TEXT NOT NULL,  -- whose it is
    previous TEXT,  -- the response that it continues
    created REAL NOT NULL,  -- seconds since 1970, as all times here
    expires REAL NOT NULL,
    status TEXT NOT NULL,
    runner TEXT NOT NULL,  -- the process that makes it in the background, or empty
    heartbeat REAL NOT NULL,  -- when that process was last seen to be alive
    bytes INTEGER NOT NULL,  -- of its body and items
    body BLOB NOT NULL  -- JSON, without the output
);
CREATE INDEX responses_of ON responses (client, created);
CREATE INDEX responses_until ON responses (expires);
CREATE INDEX responses_run ON responses (runner, client) WHERE status IN ('queued', 'in_progress');
CREATE TABLE items (
    response TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
    side INTEGER NOT NULL,  -- 0 input, 1 output
    position INTEGER NOT NULL,
    id TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (response, side, position)
) WITHOUT ROWID;
CREATE INDEX items_by_id ON items (id);
CREATE TABLE events (
    response TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (response, position)
) WITHOUT ROWID
"""
INPUT, OUTPUT = 0, 1
RUNNING = "status IN ('queued', 'in_progress')"


class ResponseDatabase(SharedSqliteFile):
    """An open database. The caller must close it."""

    application_id = 0x616C7273  # `alrs`
    noun = "store of responses"
    remedy = "move it away, set another ALLM_HOME, or keep no responses (ALLM_STORE=off)"
    pragmas = ("foreign_keys = ON", "secure_delete = ON")  # deleted content is overwritten

    @classmethod
    async def open(cls, path: Path) -> ResponseDatabase:
        """Opens or creates the file.

        Raises:
            DatabaseUnusable: the file is damaged, is not such a database, or an incompatible allm version wrote it.
        """
        database = cls(path, "responses-database", SCHEMA, VERSION)
        await database._opened()
        return database


class SqliteResponseStore:
    """See ResponseStore. `clock` returns seconds since 1970.

    `ticks` returns seconds of a clock that all processes of the host share and that nobody sets: heartbeats follow it.
    """

    def __init__(
        self,
        database: ResponseDatabase,
        days: float,
        clock: Callable[[], float] = time.time,
        most_bytes: int = store.MAX_STORED_BYTES,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._most_bytes = most_bytes
        self._seconds = days * store.DAY
        self._clock = clock
        self._ticks = ticks
        self._written = 0  # bytes since the last sweep
        self.conversations: ConversationStore = SqliteConversations(database, self._seconds, clock)

    @classmethod
    async def open(
        cls,
        path: Path,
        days: float,
        clock: Callable[[], float] = time.time,
        most_bytes: int = store.MAX_STORED_BYTES,
        ticks: Callable[[], float] = time.monotonic,
    ) -> SqliteResponseStore:
        """Opens or creates the file. Raises DatabaseUnusable."""
        return cls(await ResponseDatabase.open(path), days, clock, most_bytes, ticks)

    async def close(self) -> None:
        """Closes the file."""
        await self._database.close()

    async def check(self, client: str) -> None:
        """See ResponseStore. A file is always reachable."""

        def work(connection: sqlite3.Connection) -> int:
            (size,) = connection.execute(
                "SELECT coalesce(sum(bytes), 0) FROM responses WHERE client = ? AND expires > ?",
                (client, self._clock()),
            ).fetchone()
            return int(size)

        store.check_size(await self._database.read(work), self._most_bytes)

    # --- client operations

    async def add(self, client: str, response: Response, given: Sequence[Item]) -> None:
        """See ResponseStore."""
        self._written += await self._database.write(
            lambda connection: self._insert(connection, client, response, given)
        )
        if self._written > store.SWEEP_BYTES:
            await self.sweep()

    async def get(self, client: str, response_id: str) -> Response:
        """See ResponseStore."""

        def look(connection: sqlite3.Connection) -> Response | None:
            response, heartbeat = self._row(connection, client, response_id)
            return None if self._is_orphan(response, heartbeat) else self._whole(connection, response)

        found = await self._database.read(look)
        if found is None:  # only an orphan needs a write, which locks out other replicas
            found = await self._database.write(lambda connection: self._get(connection, client, response_id))
        return found

    async def delete(self, client: str, response_id: str) -> None:
        """See ResponseStore."""

        def work(connection: sqlite3.Connection) -> None:
            self._get(connection, client, response_id)
            connection.execute("DELETE FROM responses WHERE id = ?", (response_id,))

        await self._database.write(work)

    async def cancel(self, client: str, response_id: str) -> Response:
        """See ResponseStore."""

        def work(connection: sqlite3.Connection) -> Response:
            found = self._get(connection, client, response_id)
            if not found.settings.background:
                raise store.synchronous()
            if not found.running:
                return found
            found = msgspec.structs.replace(found, status="cancelled")
            _update(connection, found)
            return found

        return await self._database.write(work)

    async def input_items(self, client: str, response_id: str) -> tuple[Item, ...]:
        """See ResponseStore."""

        def work(connection: sqlite3.Connection) -> tuple[Item, ...]:
            self._row(connection, client, response_id)
            return _items(connection, response_id, INPUT)

        return await self._database.read(work)

    async def item(self, client: str, item_id: str) -> Item | None:
        """See ResponseStore."""

        def work(connection: sqlite3.Connection) -> Item | None:
            found = connection.execute(
                "SELECT items.body FROM items JOIN responses ON responses.id = items.response "
                "WHERE items.id = ? AND client = ? AND expires > ? ORDER BY created DESC LIMIT 1",
                (item_id, client, self._clock()),
            ).fetchone()
            return item_of(found[0]) if found else None

        return await self._database.read(work)

    async def conversation(self, client: str, response_id: str) -> tuple[Item, ...]:
        """See ResponseStore."""

        def work(connection: sqlite3.Connection) -> tuple[Item, ...]:
            chain = self._chain(connection, client, response_id)
            return tuple(item for one in reversed(chain) for item in _items(connection, one))

        return await self._database.read(work)

    # --- background responses

    async def add_background(self, client: str, response: Response, given: Sequence[Item], runner: str) -> None:
        """See ResponseStore."""
        now = self._ticks()

        def work(connection: sqlite3.Connection) -> int:
            (running,) = connection.execute(
                f"SELECT count(*) FROM responses WHERE client = ? AND {RUNNING} AND abs(? - heartbeat) <= ?",  # noqa: S608
                (client, now, store.STALE_SECONDS),
            ).fetchone()
            if running >= store.MAX_BACKGROUND:
                raise store.crowded(running)
            return self._insert(connection, client, response, given, runner, now)

        self._written += await self._database.write(work)

    async def advance(self, response: Response, events: Sequence[Event], first_event: int) -> bool:
        """See ResponseStore."""

        def work(connection: sqlite3.Connection) -> bool:
            found = connection.execute(
                f"SELECT 1 FROM responses WHERE id = ? AND {RUNNING}",  # noqa: S608
                (response.id,),
            ).fetchone()
            if found:
                _update(connection, response)
                connection.executemany(
                    "INSERT OR IGNORE INTO events VALUES (?, ?, ?)",
                    [(response.id, position, encode(event)) for position, event in enumerate(events, first_event)],
                )
            return bool(found)

        return await self._database.write(work)

    async def beat(self, runner: str, making: Collection[str]) -> set[str]:
        """See ResponseStore."""

        def work(connection: sqlite3.Connection) -> set[str]:
            now = self._ticks()
            connection.executemany(
                f"UPDATE responses SET heartbeat = ? WHERE id = ? AND runner = ? AND {RUNNING}",  # noqa: S608
                [(now, response_id, runner) for response_id in making],
            )
            found = connection.execute(
                f"SELECT id FROM responses WHERE runner = ? AND {RUNNING}",  # noqa: S608
                (runner,),
            )
            return {response_id for (response_id,) in found} & set(making)

        return await self._database.write(work)

    async def events(self, client: str, response_id: str, after: int, limit: int) -> list[tuple[int, Event]]:
        """See ResponseStore."""

        def work(connection: sqlite3.Connection) -> list[tuple[int, Event]]:
            self._row(connection, client, response_id)
            found = connection.execute(
                "SELECT position, body FROM events WHERE response = ? AND position > ? ORDER BY position LIMIT ?",
                (response_id, after, limit),
            )
            return [(position, event_of(body)) for position, body in found]

        return await self._database.read(work)

    # --- cleanup

    async def sweep(self) -> int:
        """See ResponseStore."""
        now, self._written = self._clock(), 0
        too_many = await self._database.read(_rich_clients)
        doomed: list[tuple[str, tuple[object, ...]]] = [("expires <= ?", (now,))]
        doomed += [("client = ? AND created <= ?", (client, until)) for client, until in too_many]
        swept = 0
        for condition, values in doomed:
            while deleted := await self._database.write(_deletion(condition, values)):
                swept += deleted
        return swept

    # --- inside a transaction

    def _insert(
        self,
        connection: sqlite3.Connection,
        client: str,
        response: Response,
        given: Iterable[Item],
        runner: str = "",
        heartbeat: float = 0.0,
    ) -> int:
        """Inserts a response with its input and output. Returns their size in bytes."""
        body, expires = body_of(response), response.created + self._seconds
        previous = response.settings.previous_response_id
        row = (response.id, client, previous, response.created, expires, response.status, runner, heartbeat)
        connection.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, len(body), body))
        size = _add_items(connection, response.id, INPUT, given)
        return len(body) + size + _add_items(connection, response.id, OUTPUT, response.output)

    def _row(self, connection: sqlite3.Connection, client: str, response_id: str) -> tuple[Response, float]:
        """Returns a response without its output, and its heartbeat."""
        found = connection.execute(
            "SELECT body, heartbeat FROM responses WHERE id = ? AND client = ? AND expires > ?",
            (response_id, client, self._clock()),
        ).fetchone()
        if found is None:
            raise store.not_found(response_id)
        return response_of(found[0]), found[1]

    def _get(self, connection: sqlite3.Connection, client: str, response_id: str) -> Response:
        response, heartbeat = self._row(connection, client, response_id)
        if self._is_orphan(response, heartbeat):
            response = msgspec.structs.replace(response, status="failed", failure=store.ORPHANED)
            _update(connection, response)
        return self._whole(connection, response)

    def _is_orphan(self, response: Response, heartbeat: float) -> bool:
        """Returns True if the replica that generates the response is gone. After a reboot, ticks begin at 0 again."""
        return response.running and abs(self._ticks() - heartbeat) > store.STALE_SECONDS

    def _whole(self, connection: sqlite3.Connection, response: Response) -> Response:
        return msgspec.structs.replace(response, output=_items(connection, response.id, OUTPUT))

    def _chain(self, connection: sqlite3.Connection, client: str, response_id: str) -> list[str]:
        """Returns the ids of a response and of all that it continues, newest first."""
        chain: list[str] = []
        size = 0
        current: str | None = response_id
        while current:
            found = connection.execute(
                "SELECT previous, status, bytes FROM responses WHERE id = ? AND client = ? AND expires > ?",
                (current, client, self._clock()),
            ).fetchone()
            if found is None:
                raise store.gap(current, within=bool(chain))
            previous, status, item_bytes = found
            if status in ("queued", "in_progress"):
                raise store.unfinished(current, status)
            chain.append(current)
            size += item_bytes
            if len(chain) > store.MAX_CHAIN or size > store.MAX_CHAIN_BYTES:
                raise store.too_long()
            current = previous
        return chain


def _rich_clients(connection: sqlite3.Connection) -> list[tuple[str, float]]:
    """Returns the clients above their limits, each with the creation time up to which responses are deleted."""
    found = connection.execute(
        "SELECT client, max(created) FROM ("
        "  SELECT client, created, row_number() OVER latest AS place, sum(bytes) OVER latest AS total FROM responses"
        "  WINDOW latest AS (PARTITION BY client ORDER BY created DESC)"
        ") WHERE place > ? OR total > ? GROUP BY client",
        (store.MAX_STORED, store.MAX_STORED_BYTES),
    )
    return found.fetchall()


def _deletion(condition: str, values: Iterable[object]) -> Callable[[sqlite3.Connection], int]:
    def work(connection: sqlite3.Connection) -> int:
        some = f"SELECT id FROM responses WHERE {condition} LIMIT {store.SWEPT_AT_ONCE}"  # noqa: S608
        done = connection.execute(f"DELETE FROM responses WHERE id IN ({some})", tuple(values))  # noqa: S608
        return done.rowcount

    return work


def _update(connection: sqlite3.Connection, response: Response) -> None:
    """Updates a response's state and inserts its output, if any."""
    connection.execute(
        "UPDATE responses SET status = ?, body = ? WHERE id = ?", (response.status, body_of(response), response.id)
    )
    _add_items(connection, response.id, OUTPUT, response.output)


def _items(connection: sqlite3.Connection, response_id: str, side: int | None = None) -> tuple[Item, ...]:
    """Returns the items of a response in order; without `side`, the input and then the output."""
    found = connection.execute(
        "SELECT body FROM items WHERE response = ? AND side >= ? AND side <= ? ORDER BY side, position",
        (response_id, INPUT if side is None else side, OUTPUT if side is None else side),
    )
    return tuple(item_of(body) for (body,) in found)


def _add_items(connection: sqlite3.Connection, response_id: str, side: int, added: Iterable[Item]) -> int:
    rows = [(response_id, side, position, one.id, encode(one)) for position, one in enumerate(added)]
    connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)
    size = sum(len(row[-1]) for row in rows)
    connection.execute("UPDATE responses SET bytes = bytes + ? WHERE id = ?", (size, response_id))
    return size
