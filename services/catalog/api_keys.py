"""All API keys: changes go to disk first, then to memory, then to the watchers.

A key is created, and may be revoked; nothing else about it changes. Ended keys stay listed for a while, so that
operators can investigate, and are then deleted.

A watcher gets all keys that are not revoked, a mark, and then every change. As with models, a slow watcher queues only
the ids of changed keys, so its memory is bounded by the number of keys.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields, replace

from services.auth.identity import ADMIN, INFERENCE
from services.auth.key_format import LIMITS, KeyRights, key_hash, key_hint, new_key, new_key_id
from services.catalog.database import CatalogDatabase, WholeChanges
from services.catalog.watches import OpenWatch, OpenWatches
from services.errors import InvalidRequest, KeyNotFound

log = logging.getLogger(__name__)

SCOPES = (INFERENCE, ADMIN)  # that a key may have
MAX_KEYS = 10_000  # usable keys; authorizers hold them all
MAX_NAME = 128  # characters; same for the next two
MAX_MODEL = 129  # of an id, or of a prefix and its star
MAX_MODELS_TOGETHER = 2000  # every call carries the list in a header
MAX_MODELS = 64
MAX_REQUESTS = 2**31 - 1
MAX_WHOLE = 2**53 - 1  # largest integer that every JSON reader reads exactly
KEPT_SECONDS = 90 * 86_400  # how long an ended key stays listed
MAX_WATCHERS = 100  # one for each gateway
MOST_AT_ONCE = 500  # keys of a snapshot per event


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey(KeyRights):
    """A key as an operator requests it. No scopes mean inference."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey(NewKey):
    """A key. Times are seconds since the epoch."""

    id: str
    hash: bytes = field(repr=False)  # SHA-256; the key itself is not stored
    hint: str  # the first characters, for people to recognise it
    created: int
    revoked: int = 0  # 0: not revoked

    @property
    def ended(self) -> int:
        """The time at which it expires or was revoked, whichever is earlier; 0: never."""
        return min((at for at in (self.expires, self.revoked) if at), default=0)


_COLUMNS = tuple(field.name for field in fields(ApiKey))  # of the table `api_keys`; lists are JSON
_INSERT = f"INSERT INTO api_keys ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM api_keys ORDER BY created, rowid"  # noqa: S608 (constants)


def _insert(connection: sqlite3.Connection, key: ApiKey) -> None:
    """Inserts a new key. Raises sqlite3.IntegrityError if its id or hash exists already."""
    values = asdict(key) | {"scopes": json.dumps(key.scopes), "models": json.dumps(key.models)}
    connection.execute(_INSERT, tuple(values.values()))


def _revoke(connection: sqlite3.Connection, key: ApiKey) -> None:
    connection.execute("UPDATE api_keys SET revoked = ? WHERE id = ?", (key.revoked, key.id))


def _delete(connection: sqlite3.Connection, key_ids: list[str]) -> None:
    connection.executemany("DELETE FROM api_keys WHERE id = ?", [(key_id,) for key_id in key_ids])


def _read_all(connection: sqlite3.Connection) -> list[ApiKey]:
    """Returns all keys, the oldest first."""
    found = (dict(zip(_COLUMNS, row, strict=True)) for row in connection.execute(_SELECT))
    return [
        ApiKey(**row | {"scopes": tuple(json.loads(row["scopes"])), "models": tuple(json.loads(row["models"]))})
        for row in found
    ]


@dataclass(frozen=True, slots=True)
class KeysAdded:
    """Keys that the reader does not have yet."""

    keys: tuple[ApiKey, ...]


@dataclass(frozen=True, slots=True)
class KeyRemoved:
    """The key with this id was revoked or deleted."""

    key_id: str


@dataclass(frozen=True, slots=True)
class KeysSynced:
    """Marks the end of the snapshot from the beginning of the watch."""


KeyEvent = KeysAdded | KeyRemoved | KeysSynced


class KeyWatch(OpenWatch[KeyEvent]):
    """A single watcher of `keys`, a live mapping."""

    def __init__(self, keys: Mapping[str, ApiKey]) -> None:
        super().__init__()
        self._keys = keys
        self._sent: set[str] = set()  # ids of keys that the reader holds as valid
        self._first = deque(keys)  # ids of the snapshot
        self._marked = False  # whether the end of the snapshot was sent
        self._pending: dict[str, None] = {}

    def _take(self) -> KeyEvent | None:
        while self._pending:  # revocations are sent before the rest of a snapshot
            key_id = next(iter(self._pending))
            del self._pending[key_id]
            if event := self._event_of(key_id):
                return event
        while self._first:
            if added := self._next_part():
                return KeysAdded(added)
        if self._marked:
            return None
        self._marked = True
        return KeysSynced()

    def notify(self, key_id: str) -> None:
        """Marks a key as changed and wakes the watcher."""
        self._pending[key_id] = None
        self._wake.set()

    def _next_part(self) -> tuple[ApiKey, ...]:
        """Returns the next part of the snapshot."""
        ids = [self._first.popleft() for _ in range(min(len(self._first), MOST_AT_ONCE))]
        return tuple(key for key_id in ids if (key := self._unsent(key_id)))

    def _event_of(self, key_id: str) -> KeyEvent | None:
        """Returns the event that brings the reader up to date on a key, if any."""
        if new := self._unsent(key_id):
            return KeysAdded((new,))
        if key_id in self._sent and not self._valid(key_id):
            self._sent.discard(key_id)
            return KeyRemoved(key_id)
        return None

    def _unsent(self, key_id: str) -> ApiKey | None:
        key = self._valid(key_id)
        if key is None or key_id in self._sent:
            return None
        self._sent.add(key_id)
        return key

    def _valid(self, key_id: str) -> ApiKey | None:
        key = self._keys.get(key_id)
        return key if key and not key.revoked else None


class KeyWatchers(OpenWatches[KeyWatch]):
    """All open watches of the keys."""

    def __init__(self, keys: Mapping[str, ApiKey]) -> None:
        super().__init__(MAX_WATCHERS, "keys")
        self._keys = keys

    def watch(self) -> AbstractContextManager[KeyWatch]:
        """Opens a watch for the duration of the block. Raises Overloaded when there are too many."""
        return self.open(lambda: KeyWatch(self._keys))

    def notify(self, key_id: str) -> None:
        """Notifies all watchers of a changed key."""
        for watch in self:
            watch.notify(key_id)


class ApiKeys:
    """The table of keys, with a copy in memory. `clock`: seconds since the epoch."""

    def __init__(self, database: CatalogDatabase, found: list[ApiKey], clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._changes = WholeChanges()
        self._keys = {key.id: key for key in found}
        self.watchers = KeyWatchers(self._keys)

    @classmethod
    async def load(cls, database: CatalogDatabase, clock: Callable[[], float] = time.time) -> ApiKeys:
        """Reads all keys, and deletes those that ended long ago."""
        keys = cls(database, await database.read(_read_all), clock)
        await keys._changes.run(keys._forget_old)
        return keys

    def all(self) -> list[ApiKey]:
        """Returns all listed keys, the oldest first."""
        return list(self._keys.values())

    async def create(self, new: NewKey) -> tuple[ApiKey, str]:
        """Creates a key; returns its record, and the key itself, which cannot be retrieved again.

        Raises:
            InvalidRequest: a field is invalid, or there are too many keys. The message names the field.
        """
        now = int(self._clock())
        _check(new, now)

        async def work() -> tuple[ApiKey, str]:
            await self._forget_old()
            of_use = sum(1 for key in self._keys.values() if not 0 < key.ended <= now)
            if of_use >= MAX_KEYS:
                raise InvalidRequest(f"there are {MAX_KEYS} active keys, which is the limit: revoke some first")
            secret = new_key()
            lists = {
                "scopes": tuple(scope for scope in SCOPES if scope in (new.scopes or (INFERENCE,))),
                "models": tuple(dict.fromkeys(new.models)),
            }
            made = ApiKey(
                id=new_key_id(), hash=key_hash(secret), hint=key_hint(secret), created=now, **asdict(new) | lists
            )
            await self._database.write(lambda connection: _insert(connection, made))
            self._keys[made.id] = made
            self.watchers.notify(made.id)
            log.info("key created", extra={"key": made.id, "scopes": made.scopes, "expires": made.expires})
            return made, secret

        return await self._changes.run(work)

    async def revoke(self, key_id: str) -> ApiKey:
        """Revokes a key for good; a second time does nothing. Raises KeyNotFound."""

        async def work() -> ApiKey:
            found = self._keys.get(key_id)
            if found is None:
                raise KeyNotFound(f"There is no key with the id `{key_id[:MAX_NAME]}`.", param="id")
            if found.revoked:
                return found
            ended = replace(found, revoked=int(self._clock()))
            await self._database.write(lambda connection: _revoke(connection, ended))
            self._keys[ended.id] = ended
            self.watchers.notify(ended.id)
            log.info("key revoked", extra={"key": ended.id})
            return ended

        return await self._changes.run(work)

    async def close(self) -> None:
        """Ends all watches and waits for pending writes."""
        self.watchers.close()
        await self._changes.close()

    async def _forget_old(self) -> None:
        last = self._clock() - KEPT_SECONDS
        old = [key.id for key in self._keys.values() if 0 < key.ended < last]
        if old:
            await self._database.write(lambda connection: _delete(connection, old))
        for key_id in old:
            del self._keys[key_id]
            self.watchers.notify(key_id)


def _check(new: NewKey, now: int) -> None:
    """Validates a new key. Raises InvalidRequest with the field at fault."""
    if not 1 <= len(new.name) <= MAX_NAME or not new.name.isprintable():
        raise InvalidRequest(f"'name' must have 1 to {MAX_NAME} printable characters", param="name")
    if unknown := sorted(set(new.scopes) - set(SCOPES)):
        known = ", ".join(SCOPES)
        raise InvalidRequest(f"'scopes' may contain {known}, not {unknown[0][:MAX_NAME]!r}", param="scopes")
    if len(new.models) > MAX_MODELS or sum(map(len, new.models)) > MAX_MODELS_TOGETHER:
        limits = f"at most {MAX_MODELS} models, with at most {MAX_MODELS_TOGETHER} characters in all"
        raise InvalidRequest(f"'models' may have {limits}", param="models")
    for pattern in new.models:
        name = pattern.removesuffix("*")
        fine = 1 <= len(pattern) <= MAX_MODEL and name.isascii() and name.isprintable() and not set("* ,") & set(name)
        if not fine:
            shape = f"ids, aliases, or prefixes followed by '*', not {pattern[:MAX_MODEL]!r}"
            raise InvalidRequest(f"'models' must contain {shape}", param="models")
    for limit in LIMITS:
        most = MAX_REQUESTS if "requests" in limit else MAX_WHOLE
        if not 0 <= getattr(new, limit) <= most:
            raise InvalidRequest(f"'{limit}' must be a whole number from 0 (no limit) to {most}", param=limit)
    if new.expires and new.expires <= now:
        raise InvalidRequest("'expire_time' must be in the future", param="expire_time")
