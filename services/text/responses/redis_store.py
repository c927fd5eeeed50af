"""Stored responses in Redis, which text replicas on many hosts share.

Supports one Redis or Valkey server (or a primary with replicas) but no cluster, because the scripts compute their keys.
Persistence across restarts is configured in Redis (`appendonly yes`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectionError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)

from services.errors import StoreUnavailable
from services.settings.setting import SettingError
from services.text.responses import redis_scripts, store
from services.text.responses.conversations import ConversationStore
from services.text.responses.redis_conversations import RedisConversations
from services.text.responses.response import Event, Item, Response, Status
from services.text.responses.store import body_of, encode, event_of, failure_of, item_of, response_of

log = logging.getLogger(__name__)

CALL_SECONDS = 5.0  # for one call, with retries
CONNECT_SECONDS = 2.0
CONNECTIONS = 32
CLIENTS_AT_ONCE = 100  # clients per SSCAN call of a sweep
MAX_PLACE = 2**53  # cap for list indexes that callers supply; no list is that long
WARN_SECONDS = 60.0  # between two log lines about the same problem

_ORPHANED = encode(store.ORPHANED)


class RedisResponseStore:
    """See ResponseStore. `clock` returns seconds since 1970; None means the clock of Redis, which replicas share."""

    def __init__(
        self,
        url: str,
        days: float,
        clock: Callable[[], float] | None = None,
        most_bytes: int = store.MAX_STORED_BYTES,
    ) -> None:
        """Connects on first use. Raises SettingError if redis-py does not support an option of the URL."""
        retry: Any = Retry(NoBackoff(), 1, supported_errors=(ConnectionError,))  # for connections that Redis has closed
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=CONNECTIONS,
                timeout=CALL_SECONDS,
                socket_timeout=None,  # asyncio.wait_for, which it would use, loses cancellations in Python 3.11
                socket_connect_timeout=CONNECT_SECONDS,
                retry=retry,
                client_name="allm",
            )
        except (ValueError, TypeError):
            # No cause: its message might quote the URL with the password.
            raise SettingError("ALLM_REDIS_URL", "...", "a URL whose options the redis package knows") from None
        self._redis = Redis(connection_pool=pool)
        self._where = _place(url)
        self._seconds = days * store.DAY
        self._clock = clock
        self._most_bytes = most_bytes
        self._written = 0  # bytes since the last sweep
        self._warned = -WARN_SECONDS
        register = self._redis.register_script
        self._add, self._get, self._delete = map(register, (redis_scripts.ADD, redis_scripts.GET, redis_scripts.DELETE))
        self._cancel, self._look, self._item = map(
            register, (redis_scripts.CANCEL, redis_scripts.LOOK, redis_scripts.ITEM)
        )
        self._conversation, self._advance = map(register, (redis_scripts.CONVERSATION, redis_scripts.ADVANCE))
        self._beat, self._sweep = map(register, (redis_scripts.BEAT, redis_scripts.SWEEP))
        self.conversations: ConversationStore = RedisConversations(
            register, self._run, self._seconds, clock, add=self._add, delete=self._delete, look=self._look
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    async def check(self, client: str) -> None:
        """See ResponseStore."""
        if await self._size(client) >= store.allowed_bytes(self._most_bytes):
            await self._sweep_client(client)  # the counter still has what has expired since
            store.check_size(await self._size(client), self._most_bytes)

    # --- client operations

    async def add(self, client: str, response: Response, given: Sequence[Item]) -> None:
        """See ResponseStore."""
        await self._keep(client, response, given, runner="", most=0)
        if self._written > store.SWEEP_BYTES:
            await self.sweep()

    async def get(self, client: str, response_id: str) -> Response:
        """See ResponseStore."""
        found = await self._run(self._get, client, response_id, store.STALE_SECONDS, _ORPHANED)
        return _response(found, response_id)

    async def delete(self, client: str, response_id: str) -> None:
        """See ResponseStore."""
        _existing(await self._run(self._delete, client, response_id), response_id)

    async def cancel(self, client: str, response_id: str) -> Response:
        """See ResponseStore."""
        found = await self._run(self._cancel, client, response_id, store.STALE_SECONDS, _ORPHANED)
        if found[0] == b"synchronous":
            raise store.synchronous()
        return _response(found, response_id)

    async def input_items(self, client: str, response_id: str) -> tuple[Item, ...]:
        """See ResponseStore."""
        found = await self._run(self._look, client, response_id, "input", 0, -1)
        return tuple(map(item_of, _existing(found, response_id)))

    async def item(self, client: str, item_id: str) -> Item | None:
        """See ResponseStore."""
        found = await self._run(self._item, client, item_id)
        return item_of(found[1]) if len(found) > 1 and found[1] else None

    async def conversation(self, client: str, response_id: str) -> tuple[Item, ...]:
        """See ResponseStore."""
        limits = (store.MAX_CHAIN, store.MAX_CHAIN_BYTES)
        outcome, *found = await self._run(self._conversation, client, response_id, *limits)
        if outcome == b"gap":
            raise store.gap(found[0].decode(), within=found[1] > 0)
        if outcome == b"unfinished":
            raise store.unfinished(found[0].decode(), found[1].decode())
        if outcome == b"long":
            raise store.too_long()
        return tuple(map(item_of, found))

    # --- background responses

    async def add_background(self, client: str, response: Response, given: Sequence[Item], runner: str) -> None:
        """See ResponseStore."""
        await self._keep(client, response, given, runner=runner, most=store.MAX_BACKGROUND)

    async def advance(self, response: Response, events: Sequence[Event], first_event: int) -> bool:
        """See ResponseStore."""
        state = (response.id, response.status, body_of(response), _ids(response.output), first_event)
        items = list(map(encode, response.output))
        return bool(await self._run(self._advance, *state, len(items), *items, *map(encode, events)))

    async def beat(self, runner: str, making: Collection[str]) -> set[str]:
        """See ResponseStore."""
        return {response_id.decode() for response_id in await self._run(self._beat, runner, *making)}

    async def events(self, client: str, response_id: str, after: int, limit: int) -> list[tuple[int, Event]]:
        """See ResponseStore."""
        first = min(max(after + 1, 0), MAX_PLACE)
        found = await self._run(self._look, client, response_id, "events", first, first + limit - 1)
        return list(enumerate(map(event_of, _existing(found, response_id)), first))

    # --- cleanup

    async def sweep(self) -> int:
        """See ResponseStore. Redis expires old responses itself; this corrects counters and enforces the limits."""
        self._written = swept = 0
        cursor = 0
        while True:
            scan = functools.partial(self._redis.sscan, "allm:1:clients", cursor, count=CLIENTS_AT_ONCE)
            cursor, clients = await self._call(scan)
            for client in clients:
                swept += await self._sweep_client(client)
            if not cursor:
                return swept

    # --- internals

    async def _size(self, client: str) -> int:
        """Returns the counter of a client's bytes, which has the name that `key` in the scripts makes."""
        name = f"allm:1:size:{len(client.encode())}:{client}"
        return int(await self._call(lambda: self._redis.get(name)) or 0)

    async def _sweep_client(self, client: str | bytes) -> int:
        swept = 0
        limits = (store.MAX_STORED, store.MAX_STORED_BYTES, store.SWEPT_AT_ONCE)
        while deleted := await self._run(self._sweep, client, *limits):
            swept += deleted
        return swept

    async def _keep(self, client: str, response: Response, given: Sequence[Item], *, runner: str, most: int) -> None:
        settings = response.settings
        facts = (response.id, settings.previous_response_id or "", repr(response.created))
        state = (repr(response.created + self._seconds), response.status, runner, int(settings.background))
        sides = (body_of(response), _ids(given), _ids(response.output), len(given))
        items = map(encode, (*given, *response.output))
        outcome, count = await self._run(self._add, client, *facts, *state, *sides, most, store.STALE_SECONDS, *items)
        if outcome == b"crowded":
            raise store.crowded(count)
        self._written += count

    async def _run(self, script: Any, *values: str | bytes | float) -> Any:
        now = repr(self._clock()) if self._clock else ""
        return await self._call(lambda: script(args=(now, *values)))

    async def _call(self, ask: Callable[[], Any]) -> Any:
        """Raises StoreUnavailable without the message of Redis, which could quote the data sent to it."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await ask()
        except (RedisError, OSError, TimeoutError) as error:
            problem = _problem(error)
        if time.monotonic() - self._warned > WARN_SECONDS:
            self._warned = time.monotonic()
            log.warning("the store of responses cannot be used", extra={"redis": self._where, "how": problem})
        raise StoreUnavailable(f"the store of responses (ALLM_REDIS_URL) cannot be used now: {problem}")


def _problem(error: Exception) -> str:
    """Describes an error so that an operator can act on it."""
    if isinstance(error, AuthenticationError | AuthorizationError):
        return "Redis refuses the user or the password"
    if isinstance(error, OutOfMemoryError):
        return "Redis is full (OOM): raise its maxmemory, or store less (ALLM_STORE_DAYS, ALLM_STORE_BYTES)"
    if isinstance(error, ConnectionError | OSError) and not isinstance(error, TimeoutError):
        return "Redis cannot be reached, or is still starting"
    if isinstance(error, ResponseError):
        word = str(error).split(" ", 1)[0]  # the error prefix for which redis-py has no class: MISCONF, WRONGTYPE
        return f"Redis answers {word if word.isupper() else type(error).__name__}"
    return f"Redis has not answered within {CALL_SECONDS:g} seconds"


def _place(url: str) -> str:
    """Returns the host and port, or the socket path, of a URL, without user, password and options."""
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"


def _existing(found: list[bytes], response_id: str) -> list[bytes]:
    if found[0] == b"none":
        raise store.not_found(response_id)
    return found[1:]


def _response(found: list[bytes], response_id: str) -> Response:
    """Builds a response from the result of GET. Fields that the store changes itself are separate from the body."""
    body, status, failure, *output = _existing(found, response_id)
    response = response_of(body)
    known: Status = msgspec.convert(status.decode(), Status)
    return msgspec.structs.replace(
        response,
        status=known,
        failure=failure_of(failure) if failure else response.failure,
        output=tuple(map(item_of, output)),
    )


def _ids(items: Sequence[Item]) -> bytes:
    return encode([item.id for item in items])
