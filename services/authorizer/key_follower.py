"""Follows the keys of the catalog: all of them, then every change. While the catalog is down, known keys stay valid."""

from __future__ import annotations

import asyncio
import logging

import grpc
from allm.keys.v1 import keys_pb2, keys_pb2_grpc

from services.auth.key_format import LIMITS
from services.authorizer import metrics
from services.authorizer.key_table import KeyTable, KnownKey

log = logging.getLogger(__name__)

PAUSE = 0.2  # seconds before the catalog is tried again; doubled each time
LONGEST_PAUSE = 1.0
# Unanswered pings detect a catalog that disappeared silently, within 3 seconds:
# a revoked key must stop working within 5.
OPTIONS = (
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.ping_timeout_ms", 2000),  # without it a ping may take a minute, despite the line above
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # 0: any number; no other data is sent for hours
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class KeyFollower:
    """Keeps a table in sync with the catalog behind `channel`, which was opened with OPTIONS."""

    def __init__(self, channel: grpc.aio.Channel, table: KeyTable) -> None:
        self._catalog = keys_pb2_grpc.KeyServiceStub(channel)
        self._table = table
        self._up = True  # whether the catalog answered the last attempt
        self.synced = asyncio.Event()  # set once all keys were received

    async def follow(self) -> None:
        """Follows the catalog until cancelled."""
        pause = PAUSE
        while True:
            try:
                await self._watch()
                pause = PAUSE
                self._down("OK", "it closed the stream")
            except grpc.aio.AioRpcError as error:
                self._down(error.code().name, error.details() or "")
            except Exception:
                log.exception("cannot follow the catalog")
            metrics.FOLLOWING.set(0)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _watch(self) -> None:
        seen: set[str] = set()
        async for message in self._catalog.WatchKeys(keys_pb2.WatchKeysRequest()):
            event = message.WhichOneof("event")
            if event == "added":
                for hashed in message.added.keys:
                    seen.add(hashed.key.id)
                    self._table.put(known_key(hashed))
            elif event == "removed_id":
                seen.discard(message.removed_id)
                self._table.remove(message.removed_id)
            elif event == "synced":
                self._table.retain(seen)
                self.synced.set()
                self._up = True
                metrics.FOLLOWING.set(1)
                log.info("the keys are in sync with the catalog", extra={"keys": len(self._table)})

    def _down(self, code: str, details: str) -> None:
        """Logs the first failed attempt, not the following ones."""
        if self._up:
            log.warning("the catalog sends no keys: known keys stay valid", extra={"code": code, "details": details})
        self._up = False


def known_key(hashed: keys_pb2.HashedKey) -> KnownKey:
    """Converts a key from the catalog's message."""
    key = hashed.key
    return KnownKey(
        id=key.id,
        sha256=hashed.sha256,
        scopes=tuple(key.scopes),
        models=tuple(key.models),
        **{limit: getattr(key, limit) for limit in LIMITS},
        expires=key.expire_time.seconds if key.HasField("expire_time") else 0,
    )
