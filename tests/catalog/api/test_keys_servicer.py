"""allm.keys.v1.KeyService over real gRPC."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.keys.v1 import keys_pb2, keys_pb2_grpc

from services.auth.authentication import Authenticator
from services.auth.key_format import key_hash
from services.catalog.api.keys_servicer import KeyServicer
from services.catalog.api_keys import ApiKeys
from services.catalog.database import MIGRATIONS, CatalogDatabase
from services.rpc.call import Call
from tests.catalog.catalog_service import refusal
from tests.identities import PUBLIC, identity, own_process, shown

PATIENCE = 60.0  # seconds


@asynccontextmanager
async def served(home: Path) -> AsyncIterator[keys_pb2_grpc.KeyServiceStub]:
    database = await CatalogDatabase.open(home / "catalog.db", MIGRATIONS)
    keys = await ApiKeys.load(database)
    server = grpc.aio.server()
    keys_pb2_grpc.add_KeyServiceServicer_to_server(KeyServicer(keys), server)
    with tempfile.TemporaryDirectory(prefix="keys-") as folder:
        server.add_insecure_port(f"unix:{folder}/s")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"unix:{folder}/s") as channel:
                yield keys_pb2_grpc.KeyServiceStub(channel)
        finally:
            await keys.close()
            await server.stop(0)
            await database.close()


async def read(stream: Any) -> keys_pb2.WatchKeysResponse:
    """Returns the next event of a watch."""
    return await asyncio.wait_for(stream.read(), PATIENCE)


async def test_a_life(tmp_path: Path) -> None:
    async with served(tmp_path) as keys:
        watch = keys.WatchKeys(keys_pb2.WatchKeysRequest())
        assert (await read(watch)).HasField("synced")
        request = keys_pb2.CreateKeyRequest(
            name="ann", scopes=["admin"], models=["m*"], requests_per_minute=5, tokens_per_minute=7
        )
        request.concurrent_requests = 9
        request.bytes_in_flight, request.stored_bytes = 2**40, 2**41
        request.expire_time.seconds = int(time.time()) + 3600
        made = await keys.CreateKey(request)
        (added,) = (await read(watch)).added.keys
        assert (added.key, added.sha256) == (made.key, key_hash(made.secret))
        assert (made.key.name, list(made.key.scopes), list(made.key.models)) == ("ann", ["admin"], ["m*"])
        assert (made.key.requests_per_minute, made.key.tokens_per_minute, made.key.concurrent_requests) == (5, 7, 9)
        assert (made.key.bytes_in_flight, made.key.stored_bytes) == (2**40, 2**41)
        assert made.key.expire_time == request.expire_time
        assert not made.key.HasField("revoke_time")
        listed = await keys.ListKeys(keys_pb2.ListKeysRequest())
        assert list(listed.keys) == [made.key]
        assert made.secret not in str(listed)
        revoked = await keys.RevokeKey(keys_pb2.RevokeKeyRequest(id=made.key.id))
        assert revoked.key.revoke_time.seconds >= made.key.create_time.seconds
        assert (await read(watch)).removed_id == made.key.id


async def test_errors(tmp_path: Path) -> None:
    async with served(tmp_path) as keys:
        nameless = await refusal(keys.CreateKey(keys_pb2.CreateKeyRequest()))
        assert (nameless.code, nameless.reason, nameless.param) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_REQUEST",
            "name",
        )
        for seconds in (-1, 1, 2**60):
            late = keys_pb2.CreateKeyRequest(name="a")
            late.expire_time.seconds = seconds
            assert (await refusal(keys.CreateKey(late))).param == "expire_time"
        unknown = await refusal(keys.RevokeKey(keys_pb2.RevokeKeyRequest(id="key_0")))
        assert (unknown.code, unknown.param) == (grpc.StatusCode.NOT_FOUND, "id")
        assert (await refusal(keys.RevokeKey(keys_pb2.RevokeKeyRequest()))).code == grpc.StatusCode.INVALID_ARGUMENT


async def test_scopes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only operators manage keys, and only the authorizer sees the hashes."""
    monkeypatch.setattr(Call, "authenticator", Authenticator(PUBLIC))
    user, operator = shown(identity("key_user")), shown(identity("key_root", "admin", "inference"))
    async with served(tmp_path) as keys:

        async def watch(metadata: Any) -> keys_pb2.WatchKeysResponse:
            stream = keys.WatchKeys(keys_pb2.WatchKeysRequest(), metadata=metadata)
            return await read(stream)

        for metadata, code in (((), grpc.StatusCode.UNAUTHENTICATED), (user, grpc.StatusCode.PERMISSION_DENIED)):
            for call in (
                keys.CreateKey(keys_pb2.CreateKeyRequest(name="a"), metadata=metadata),
                keys.ListKeys(keys_pb2.ListKeysRequest(), metadata=metadata),
                keys.RevokeKey(keys_pb2.RevokeKeyRequest(id="key_0"), metadata=metadata),
                watch(metadata),
            ):
                assert (await refusal(call)).code == code
        assert (await refusal(watch(operator))).code == grpc.StatusCode.PERMISSION_DENIED
        await keys.CreateKey(keys_pb2.CreateKeyRequest(name="a"), metadata=operator)
        for role in ("operator", "text", "audio", "image"):
            assert (await refusal(watch(own_process(role)))).code == grpc.StatusCode.PERMISSION_DENIED
        assert len((await watch(own_process("authorizer"))).added.keys) == 1
