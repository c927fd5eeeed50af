"""The SQLite tables of stored responses, their reads and writes in a transaction, and the JSON of all stores."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from services.text.responses.response import Event, Failure, Item, Response

encode = msgspec.json.Encoder().encode
response_of = msgspec.json.Decoder(Response).decode
failure_of = msgspec.json.Decoder(Failure).decode
item_of = msgspec.json.Decoder[Item](Item).decode
event_of = msgspec.json.Decoder[Event](Event).decode
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


def body_of(response: Response) -> bytes:
    """Encodes a response without its output: items are stored separately, so that each is written once."""
    return encode(msgspec.structs.replace(response, output=()))


class Row(NamedTuple):
    """A stored response with the columns that only the store uses."""

    response: Response  # without its output
    runner: str
    heartbeat: float


def insert(
    connection: sqlite3.Connection,
    client: str,
    response: Response,
    given: Iterable[Item],
    *,
    expires: float,
    runner: str = "",
    heartbeat: float = 0.0,
) -> int:
    """Inserts a response with its input and output. Returns their size in bytes."""
    body = body_of(response)
    connection.execute(
        "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            response.id,
            client,
            response.settings.previous_response_id,
            response.created,
            expires,
            response.status,
            runner,
            heartbeat,
            len(body),
            body,
        ),
    )
    size = _add_items(connection, response.id, INPUT, given)
    return len(body) + size + _add_items(connection, response.id, OUTPUT, response.output)


def update(connection: sqlite3.Connection, response: Response) -> None:
    """Updates a response's state and inserts its output, if any."""
    connection.execute(
        "UPDATE responses SET status = ?, body = ? WHERE id = ?", (response.status, body_of(response), response.id)
    )
    _add_items(connection, response.id, OUTPUT, response.output)


def find(connection: sqlite3.Connection, client: str, response_id: str, now: float) -> Row | None:
    """Returns a response if the client owns it and it has not expired."""
    found = connection.execute(
        "SELECT body, runner, heartbeat FROM responses WHERE id = ? AND client = ? AND expires > ?",
        (response_id, client, now),
    ).fetchone()
    return Row(response_of(found[0]), found[1], found[2]) if found else None


def items(connection: sqlite3.Connection, response_id: str, side: int | None = None) -> tuple[Item, ...]:
    """Returns the items of a response in order; without `side`, the input and then the output."""
    found = connection.execute(
        "SELECT body FROM items WHERE response = ? AND side >= ? AND side <= ? ORDER BY side, position",
        (response_id, INPUT if side is None else side, OUTPUT if side is None else side),
    )
    return tuple(item_of(body) for (body,) in found)


def item(connection: sqlite3.Connection, client: str, item_id: str, now: float) -> Item | None:
    """Returns the item with that id from the client's latest response that has it."""
    found = connection.execute(
        "SELECT items.body FROM items JOIN responses ON responses.id = items.response "
        "WHERE items.id = ? AND client = ? AND expires > ? ORDER BY created DESC LIMIT 1",
        (item_id, client, now),
    ).fetchone()
    return item_of(found[0]) if found else None


def add_events(connection: sqlite3.Connection, response_id: str, first: int, events: Iterable[Event]) -> None:
    """Stores events for clients that follow the response. Existing events are not replaced."""
    connection.executemany(
        "INSERT OR IGNORE INTO events VALUES (?, ?, ?)",
        [(response_id, position, encode(event)) for position, event in enumerate(events, first)],
    )


def events(connection: sqlite3.Connection, response_id: str, after: int, limit: int) -> Iterator[tuple[int, Event]]:
    """Returns the stored events of a response after a position, with their positions."""
    found = connection.execute(
        "SELECT position, body FROM events WHERE response = ? AND position > ? ORDER BY position LIMIT ?",
        (response_id, after, limit),
    )
    return ((position, event_of(body)) for position, body in found)


def _add_items(connection: sqlite3.Connection, response_id: str, side: int, added: Iterable[Item]) -> int:
    rows = [(response_id, side, position, one.id, encode(one)) for position, one in enumerate(added)]
    connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)
    size = sum(len(row[-1]) for row in rows)
    connection.execute("UPDATE responses SET bytes = bytes + ? WHERE id = ?", (size, response_id))
    return size
