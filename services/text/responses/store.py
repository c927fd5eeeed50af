"""Stored responses: whose they are, how long they are kept, what continues what, and who makes those in the background.

Any replica of the host may read, delete and cancel what another makes: cancelling is a mark in the file, which the one
that makes it looks for.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from services.rpc.errors import InvalidRequest, Overloaded, ResponseNotFound
from services.text.responses import rows
from services.text.responses.database import Database
from services.text.responses.event import Event
from services.text.responses.item import Item
from services.text.responses.response import Failure, Response

DAY = 86_400.0
MAX_CHAIN = 1_000  # responses that one may continue, directly and indirectly
MAX_CHAIN_BYTES = 32 * 1024 * 1024  # of all that is kept of them
MAX_BACKGROUND = 32  # responses of one client that wait or run in the background
MAX_STORED = 100_000  # responses of one client; the oldest beyond them are forgotten
MAX_STORED_BYTES = 4 * 1024 * 1024 * 1024  # the same for their size
SWEEP_BYTES = 256 * 1024 * 1024  # written here since the last sweep: then it is time for one
STALE_SECONDS = 8.0  # a replica whose heartbeat is older is gone
SWEPT_AT_ONCE = 500  # rows deleted in one transaction: others wait meanwhile


class ResponseStore:
    """The stored responses of all clients. `clock` tells seconds since 1970."""

    def __init__(self, database: Database, days: float, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._seconds = days * DAY
        self._clock = clock
        self._written = 0  # bytes since the last sweep

    @classmethod
    async def open(cls, path: Path, days: float, clock: Callable[[], float] = time.time) -> ResponseStore:
        """Opens or makes the file. Raises DatabaseUnusable."""
        return cls(await Database.open(path, rows.SCHEMA, rows.VERSION), days, clock)

    async def close(self) -> None:
        """Closes the file."""
        await self._database.close()

    # --- what callers do

    async def add(self, client: str, response: Response, given: Sequence[Item]) -> None:
        """Keeps a response that has ended."""
        expires = response.created + self._seconds
        self._written += await self._database.write(
            lambda connection: rows.insert(connection, client, response, given, expires=expires)
        )
        if self._written > SWEEP_BYTES:
            await self.sweep()

    async def get(self, client: str, response_id: str) -> Response:
        """A response as it is now. Raises ResponseNotFound."""

        def look(connection: sqlite3.Connection) -> Response | None:
            row = self._row(connection, client, response_id)
            return None if self._is_orphan(row) else self._whole(connection, row.response)

        found = await self._database.read(look)
        if found is None:  # only then is there something to write, for which replicas take turns
            found = await self._database.write(lambda connection: self._get(connection, client, response_id))
        return found

    async def delete(self, client: str, response_id: str) -> None:
        """Forgets a response; whoever makes it finds it gone, and stops. Raises ResponseNotFound."""

        def work(connection: sqlite3.Connection) -> None:
            self._get(connection, client, response_id)
            connection.execute("DELETE FROM responses WHERE id = ?", (response_id,))

        await self._database.write(work)

    async def cancel(self, client: str, response_id: str) -> Response:
        """Marks a response in the background as cancelled; one that has ended stays as it is.

        Raises:
            ResponseNotFound: there is none.
            InvalidRequest: it is not in the background.
        """

        def work(connection: sqlite3.Connection) -> Response:
            found = self._get(connection, client, response_id)
            if not found.asked.background:
                raise InvalidRequest("Cannot cancel a synchronous response.", param="response_id")
            if not found.running:
                return found
            found = msgspec.structs.replace(found, status="cancelled")
            rows.update(connection, found)
            return found

        return await self._database.write(work)

    async def input_items(self, client: str, response_id: str) -> tuple[Item, ...]:
        """What a response was given. Raises ResponseNotFound."""

        def work(connection: sqlite3.Connection) -> tuple[Item, ...]:
            self._row(connection, client, response_id)
            return rows.items(connection, response_id, rows.INPUT)

        return await self._database.read(work)

    async def item(self, client: str, item_id: str) -> Item | None:
        """An item of one of the client's stored responses."""
        return await self._database.read(lambda connection: rows.item(connection, client, item_id, self._clock()))

    async def conversation(self, client: str, response_id: str) -> tuple[Item, ...]:
        """Everything that was said up to the end of a response, oldest first.

        Raises:
            ResponseNotFound: it is not there, or one that it continues is no longer there.
            InvalidRequest: it has not ended, or the conversation is too long.
        """

        def work(connection: sqlite3.Connection) -> tuple[Item, ...]:
            chain = self._chain(connection, client, response_id)
            return tuple(item for one in reversed(chain) for item in rows.items(connection, one))

        return await self._database.read(work)

    # --- what is made in the background

    async def add_background(self, client: str, response: Response, given: Sequence[Item], runner: str) -> None:
        """Keeps a response that is going to be made by `runner`. Raises Overloaded."""
        now = self._clock()

        def work(connection: sqlite3.Connection) -> int:
            (running,) = connection.execute(
                f"SELECT count(*) FROM responses WHERE client = ? AND {rows.RUNNING} AND heartbeat >= ?",  # noqa: S608
                (client, now - STALE_SECONDS),
            ).fetchone()
            if running >= MAX_BACKGROUND:
                message = f"{running} responses wait or run in the background; {MAX_BACKGROUND} are allowed"
                raise Overloaded(message, retry_after=5)
            expires = response.created + self._seconds
            return rows.insert(connection, client, response, given, expires=expires, runner=runner, heartbeat=now)

        self._written += await self._database.write(work)

    async def advance(self, response: Response, told: Sequence[Event], first_event: int) -> bool:
        """Notes how far a response in the background is, and keeps its events. False: it was cancelled or deleted."""

        def work(connection: sqlite3.Connection) -> bool:
            found = connection.execute(
                f"SELECT 1 FROM responses WHERE id = ? AND {rows.RUNNING}",  # noqa: S608
                (response.id,),
            ).fetchone()
            if found:
                rows.update(connection, response)
                rows.add_events(connection, response.id, first_event, told)
            return bool(found)

        return await self._database.write(work)

    async def beat(self, runner: str) -> set[str]:
        """Says that `runner` is alive; gives the ids of what it should still be making."""

        def work(connection: sqlite3.Connection) -> set[str]:
            connection.execute(
                f"UPDATE responses SET heartbeat = ? WHERE runner = ? AND {rows.RUNNING}",  # noqa: S608
                (self._clock(), runner),
            )
            found = connection.execute(
                f"SELECT id FROM responses WHERE runner = ? AND {rows.RUNNING}",  # noqa: S608
                (runner,),
            )
            return {response_id for (response_id,) in found}

        return await self._database.write(work)

    async def events(self, client: str, response_id: str, after: int, limit: int) -> list[tuple[int, Event]]:
        """Kept events beyond a position, at most `limit`. Raises ResponseNotFound."""

        def work(connection: sqlite3.Connection) -> list[tuple[int, Event]]:
            self._row(connection, client, response_id)
            return list(rows.events(connection, response_id, after, limit))

        return await self._database.read(work)

    # --- what is forgotten

    async def sweep(self) -> int:
        """Deletes what has expired, and what a client has too many of; gives their number."""
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

    def _row(self, connection: sqlite3.Connection, client: str, response_id: str) -> rows.Row:
        found = rows.find(connection, client, response_id, self._clock())
        if found is None:
            message = f"Response with id '{response_id[:80]}' not found."
            raise ResponseNotFound(message, param="response_id")
        return found

    def _get(self, connection: sqlite3.Connection, client: str, response_id: str) -> Response:
        row = self._row(connection, client, response_id)
        response = row.response
        if self._is_orphan(row):
            why = Failure(code="INTERNAL", message="the replica that made the response is gone; ask again")
            response = msgspec.structs.replace(response, status="failed", failure=why)
            rows.update(connection, response)
        return self._whole(connection, response)

    def _is_orphan(self, row: rows.Row) -> bool:
        """Whether it is to be made by a replica that is gone."""
        return row.response.running and row.heartbeat < self._clock() - STALE_SECONDS

    def _whole(self, connection: sqlite3.Connection, response: Response) -> Response:
        return msgspec.structs.replace(response, output=rows.items(connection, response.id, rows.OUTPUT))

    def _chain(self, connection: sqlite3.Connection, client: str, response_id: str) -> list[str]:
        """The ids of a response and of all that it continues, newest first."""
        param = "previous_response_id"
        chain: list[str] = []
        size = 0
        current: str | None = response_id
        while current:
            found = connection.execute(
                "SELECT previous, status, bytes FROM responses WHERE id = ? AND client = ? AND expires > ?",
                (current, client, self._clock()),
            ).fetchone()
            if found is None:
                within = ", which the conversation goes through, is no longer there." if chain else " not found."
                raise ResponseNotFound(f"Previous response with id '{current[:80]}'{within}", param=param)
            previous, status, item_bytes = found
            if status in ("queued", "in_progress"):
                raise InvalidRequest(f"Previous response '{current}' has not ended: it is {status}.", param=param)
            chain.append(current)
            size += item_bytes
            if len(chain) > MAX_CHAIN or size > MAX_CHAIN_BYTES:
                message = f"The conversation is longer than {MAX_CHAIN} responses or {MAX_CHAIN_BYTES} bytes."
                raise InvalidRequest(message, param=param)
            current = previous
        return chain


def _rich_clients(connection: sqlite3.Connection) -> list[tuple[str, float]]:
    """Clients with too much, and the time up to which theirs goes."""
    found = connection.execute(
        "SELECT client, max(created) FROM ("
        "  SELECT client, created, row_number() OVER latest AS place, sum(bytes) OVER latest AS total FROM responses"
        "  WINDOW latest AS (PARTITION BY client ORDER BY created DESC)"
        ") WHERE place > ? OR total > ? GROUP BY client",
        (MAX_STORED, MAX_STORED_BYTES),
    )
    return found.fetchall()


def _deletion(condition: str, values: Iterable[object]) -> Callable[[sqlite3.Connection], int]:
    def work(connection: sqlite3.Connection) -> int:
        done = connection.execute(
            f"DELETE FROM responses WHERE id IN (SELECT id FROM responses WHERE {condition} LIMIT {SWEPT_AT_ONCE})",  # noqa: S608
            tuple(values),
        )
        return done.rowcount

    return work
