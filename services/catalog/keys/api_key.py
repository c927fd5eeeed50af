"""An API key in the catalog, and its row in the database."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field

_COLUMNS = (
    "id, hash, hint, name, scopes, models, requests_per_minute, tokens_per_minute, created, expires, revoked, "
    "concurrent_requests, bytes_in_flight, stored_bytes"
)
_MARKS = ", ".join("?" for _ in _COLUMNS.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key. Times are seconds since the epoch."""

    id: str
    hash: bytes = field(repr=False)  # SHA-256; the key itself is not stored
    hint: str  # the first characters, for people to recognise it
    name: str
    scopes: tuple[str, ...]
    models: tuple[str, ...] = ()  # ids, aliases or `prefix*`; none: all
    requests_per_minute: int = 0  # 0: no limit; same for the next four fields
    tokens_per_minute: int = 0
    concurrent_requests: int = 0
    bytes_in_flight: int = 0
    stored_bytes: int = 0
    created: int
    expires: int = 0  # 0: never
    revoked: int = 0  # 0: not revoked

    @property
    def ended(self) -> int:
        """The time at which it expires or was revoked, whichever is earlier; 0: never."""
        return min((at for at in (self.expires, self.revoked) if at), default=0)


def insert(connection: sqlite3.Connection, key: ApiKey) -> None:
    """Inserts a new key. Raises sqlite3.IntegrityError if its id or hash exists already."""
    connection.execute(f"INSERT INTO api_keys ({_COLUMNS}) VALUES ({_MARKS})", _values(key))  # noqa: S608 (constants)


def revoke(connection: sqlite3.Connection, key_id: str, at: int) -> None:
    """Marks a key as revoked."""
    connection.execute("UPDATE api_keys SET revoked = ? WHERE id = ?", (at, key_id))


def forget(connection: sqlite3.Connection, key_ids: list[str]) -> None:
    """Deletes keys."""
    connection.executemany("DELETE FROM api_keys WHERE id = ?", [(key_id,) for key_id in key_ids])


def read_all(connection: sqlite3.Connection) -> list[ApiKey]:
    """Returns all keys, the oldest first."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM api_keys ORDER BY created, rowid")  # noqa: S608 (constants)
    return [_read(row) for row in rows]


def _values(key: ApiKey) -> tuple[object, ...]:
    return (
        key.id,
        key.hash,
        key.hint,
        key.name,
        json.dumps(key.scopes),
        json.dumps(key.models),
        key.requests_per_minute,
        key.tokens_per_minute,
        key.created,
        key.expires,
        key.revoked,
        key.concurrent_requests,
        key.bytes_in_flight,
        key.stored_bytes,
    )


def _read(row: tuple[object, ...]) -> ApiKey:
    key_id, digest, hint, name, scopes, models, requests, tokens, created, expires, revoked, *limits = row
    concurrent, in_flight, stored = map(_whole, limits)
    return ApiKey(
        id=str(key_id),
        hash=digest if isinstance(digest, bytes) else b"",
        hint=str(hint),
        name=str(name),
        scopes=tuple(json.loads(str(scopes))),
        models=tuple(json.loads(str(models))),
        requests_per_minute=_whole(requests),
        tokens_per_minute=_whole(tokens),
        concurrent_requests=concurrent,
        bytes_in_flight=in_flight,
        stored_bytes=stored,
        created=_whole(created),
        expires=_whole(expires),
        revoked=_whole(revoked),
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0  # STRICT tables guarantee an integer
