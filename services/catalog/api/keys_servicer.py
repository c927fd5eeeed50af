"""allm.keys.v1.KeyService: the gRPC service for API keys."""

from __future__ import annotations

from allm.keys.v1 import keys_pb2, keys_pb2_grpc

from services.auth.identity import ADMIN, WATCH_KEYS
from services.auth.key_format import LIMITS
from services.catalog.api.messages import required_id
from services.catalog.api_keys import ApiKey, ApiKeys, KeyRemoved, KeysAdded, NewKey
from services.errors import InvalidRequest
from services.rpc.call import Call, typed

SECONDS = 30.0  # a disk may be slow
MAX_TIME = 253_402_300_799  # the last second of a protobuf timestamp


class KeyServicer(keys_pb2_grpc.KeyServiceServicer):
    """The API for managing keys."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    @typed(SECONDS, scope=ADMIN)
    async def CreateKey(  # noqa: N802
        self, request: keys_pb2.CreateKeyRequest, call: Call
    ) -> keys_pb2.CreateKeyResponse:
        """Creates a key and returns its secret, which is never returned again."""
        new = NewKey(
            name=request.name,
            scopes=tuple(request.scopes),
            models=tuple(request.models),
            **{limit: getattr(request, limit) for limit in LIMITS},
            expires=_expires(request),
        )
        made, secret = await self._keys.create(new)
        call.facts["key"] = made.id
        return keys_pb2.CreateKeyResponse(key=key_message(made), secret=secret)

    @typed(SECONDS, scope=ADMIN)
    async def ListKeys(self, request: keys_pb2.ListKeysRequest, call: Call) -> keys_pb2.ListKeysResponse:  # noqa: N802
        """Returns all keys, the oldest first."""
        return keys_pb2.ListKeysResponse(keys=map(key_message, self._keys.all()))

    @typed(SECONDS, scope=ADMIN)
    async def RevokeKey(  # noqa: N802
        self, request: keys_pb2.RevokeKeyRequest, call: Call
    ) -> keys_pb2.RevokeKeyResponse:
        """Revokes a key for good."""
        revoked = await self._keys.revoke(required_id(request.id))
        call.facts["key"] = revoked.id
        return keys_pb2.RevokeKeyResponse(key=key_message(revoked))

    @typed(scope=WATCH_KEYS)
    async def WatchKeys(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: keys_pb2.WatchKeysRequest, call: Call
    ) -> None:
        """Streams all keys that are not revoked, a mark, then every change, until the caller cancels."""
        response = keys_pb2.WatchKeysResponse
        with self._keys.watchers.watch() as watch:
            while event := await watch.next():
                if isinstance(event, KeysAdded):
                    hashed = [keys_pb2.HashedKey(key=key_message(key), sha256=key.hash) for key in event.keys]
                    await call.send(response(added=keys_pb2.HashedKeys(keys=hashed)))
                elif isinstance(event, KeyRemoved):
                    await call.send(response(removed_id=event.key_id))
                else:
                    await call.send(response(synced=keys_pb2.KeysSynced()))


def key_message(key: ApiKey) -> keys_pb2.ApiKey:
    """Converts a key to protobuf, without its hash."""
    message = keys_pb2.ApiKey(
        id=key.id,
        name=key.name,
        hint=key.hint,
        scopes=key.scopes,
        models=key.models,
        **{limit: getattr(key, limit) for limit in LIMITS},
    )
    message.create_time.seconds = key.created
    if key.expires:
        message.expire_time.seconds = key.expires
    if key.revoked:
        message.revoke_time.seconds = key.revoked
    return message


def _expires(request: keys_pb2.CreateKeyRequest) -> int:
    """Returns a new key's expiry; 0: never. Raises InvalidRequest for an invalid time."""
    if not request.HasField("expire_time"):
        return 0
    seconds = request.expire_time.seconds
    if not 0 < seconds <= MAX_TIME:
        raise InvalidRequest("'expire_time' must be in the future, before the year 10000", param="expire_time")
    return seconds
