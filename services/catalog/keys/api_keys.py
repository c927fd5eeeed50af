"""All API keys: changes go to disk first, then to memory, then to the watchers.

A key is created, and may be revoked; nothing else about it changes. Ended keys stay listed for a while, so that
operators can investigate, and are then deleted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from services.auth.identity import ADMIN, INFERENCE
from services.auth.key_format import key_hash, key_hint, new_key, new_key_id
from services.catalog.database import Database, WholeChanges
from services.catalog.keys import api_key
from services.catalog.keys.api_key import ApiKey
from services.catalog.keys.key_watch import KeyWatchers
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key as an operator requests it."""

    name: str
    scopes: tuple[str, ...] = ()  # none: inference
    models: tuple[str, ...] = ()
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent_requests: int = 0
    bytes_in_flight: int = 0
    stored_bytes: int = 0
    expires: int = 0  # seconds since the epoch; 0: never


class ApiKeys:
    """The table of keys, with a copy in memory. `clock`: seconds since the epoch."""

    def __init__(self, database: Database, found: list[ApiKey], clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._changes = WholeChanges()
        self._keys = {key.id: key for key in found}
        self.watchers = KeyWatchers(self._keys)

    @classmethod
    async def load(cls, database: Database, clock: Callable[[], float] = time.time) -> ApiKeys:
        """Reads all keys, and deletes those that ended long ago."""
        keys = cls(database, await database.read(api_key.read_all), clock)
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
            made = ApiKey(
                id=new_key_id(),
                hash=key_hash(secret),
                hint=key_hint(secret),
                name=new.name,
                scopes=tuple(scope for scope in SCOPES if scope in (new.scopes or (INFERENCE,))),
                models=tuple(dict.fromkeys(new.models)),
                requests_per_minute=new.requests_per_minute,
                tokens_per_minute=new.tokens_per_minute,
                concurrent_requests=new.concurrent_requests,
                bytes_in_flight=new.bytes_in_flight,
                stored_bytes=new.stored_bytes,
                created=now,
                expires=new.expires,
            )
            await self._database.write(lambda connection: api_key.insert(connection, made))
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
            await self._database.write(lambda connection: api_key.revoke(connection, ended.id, ended.revoked))
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
            await self._database.write(lambda connection: api_key.forget(connection, old))
        for key_id in old:
            del self._keys[key_id]
            self.watchers.notify(key_id)


def _check(new: NewKey, now: int) -> None:
    """Validates a new key. Raises InvalidRequest with the field at fault."""
    if not 1 <= len(new.name) <= MAX_NAME or not new.name.isprintable():
        raise InvalidRequest(f"'name' must have 1 to {MAX_NAME} printable characters", param="name")
    if unknown := sorted(set(new.scopes) - set(SCOPES)):
        known = ", ".join(SCOPES)
        raise InvalidRequest(f"'scopes' may hold {known}, not {unknown[0][:MAX_NAME]!r}", param="scopes")
    if len(new.models) > MAX_MODELS or sum(map(len, new.models)) > MAX_MODELS_TOGETHER:
        limits = f"{MAX_MODELS} models, with {MAX_MODELS_TOGETHER} characters together"
        raise InvalidRequest(f"'models' may hold {limits}", param="models")
    for pattern in new.models:
        name = pattern.removesuffix("*")
        fine = 1 <= len(pattern) <= MAX_MODEL and name.isascii() and name.isprintable() and not set("* ,") & set(name)
        if not fine:
            shape = f"ids, aliases, or prefixes followed by '*', not {pattern[:MAX_MODEL]!r}"
            raise InvalidRequest(f"'models' must hold {shape}", param="models")
    for field, value, most in (
        ("requests_per_minute", new.requests_per_minute, MAX_REQUESTS),
        ("tokens_per_minute", new.tokens_per_minute, MAX_WHOLE),
        ("concurrent_requests", new.concurrent_requests, MAX_REQUESTS),
        ("bytes_in_flight", new.bytes_in_flight, MAX_WHOLE),
        ("stored_bytes", new.stored_bytes, MAX_WHOLE),
    ):
        if not 0 <= value <= most:
            raise InvalidRequest(f"'{field}' must be a whole number from 0 (no limit) to {most}", param=field)
    if new.expires and new.expires <= now:
        raise InvalidRequest("'expire_time' must be in the future", param="expire_time")
