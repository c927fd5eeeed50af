"""The identity with which our own processes call each other, signed anew for every call.

Services, `allm serve` and the commands open their channels with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
from grpc.aio import ClientCallDetails, ClientInterceptor, UnaryStreamClientInterceptor, UnaryUnaryClientInterceptor

from services.auth.identity import HEADER, LIFETIME_SECONDS, own_identity, sign
from services.auth.identity_keys import OPERATOR, SigningKey, read_key
from services.rpc.channel import blocking_channel, service_channel
from services.settings.gateway_settings import AuthSettings
from services.settings.tls_settings import ServiceTls
from services.telemetry import tracing

Now = Callable[[], float]
Metadata = Callable[[], tuple[tuple[str, str], ...]]


class OwnIdentity:
    """This process's identity. Without a key it is anonymous and sends no identity."""

    def __init__(
        self,
        key: SigningKey | None,
        role: str = OPERATOR,
        name: str = "",
        clock: Now = time.time,
        tls: ServiceTls | None = None,
    ) -> None:
        """`name`: of the replica, or of the command. `clock`: seconds since the epoch. `tls`: its certificates."""
        self._tls = tls
        self._key = key
        self._role = role
        self._name = name
        self._clock = clock

    @classmethod
    def of(cls, auth: AuthSettings, role: str, name: str, tls: ServiceTls | None = None) -> OwnIdentity:
        """Creates the identity of a process. Raises KeysUnusable if callers need keys, and it has none of its own."""
        return cls(read_key(auth.key_file_of(role)) if auth.keys else None, role, name, tls=tls)

    @property
    def is_known(self) -> bool:
        """Returns whether it sends an identity."""
        return self._key is not None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns metadata for a call: the identity, valid for a minute, and the current trace."""
        if self._key is None:
            return tracing.outgoing()
        expires = int(self._clock()) + LIFETIME_SECONDS
        text = sign(own_identity(self._role, self._name, expires), self._key)
        return ((HEADER, text), *tracing.outgoing())

    def channel(self, address: str, options: Any = ()) -> grpc.aio.Channel:
        """Opens a channel whose calls carry the identity. The caller closes it."""
        interceptors: list[ClientInterceptor] = [_UnaryInterceptor(self.metadata), _StreamInterceptor(self.metadata)]
        needed = interceptors if self._key is not None or tracing.tracer else []
        return service_channel(address, self._tls, options, needed)

    def blocking_channel(self, address: str, options: Any = ()) -> grpc.Channel:
        """Opens a synchronous channel whose calls carry the identity. The caller closes it."""
        channel = blocking_channel(address, self._tls, options)
        return channel if self._key is None else grpc.intercept_channel(channel, MetadataInterceptor(self.metadata))


NOBODY = OwnIdentity(None)  # sends no identity


class _UnaryInterceptor(UnaryUnaryClientInterceptor):
    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(_signed(client_call_details, self._metadata()), request)


class _StreamInterceptor(UnaryStreamClientInterceptor):
    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(_signed(client_call_details, self._metadata()), request)


def _signed(details: ClientCallDetails, own: tuple[tuple[str, str], ...]) -> ClientCallDetails:
    metadata = grpc.aio.Metadata(*(details.metadata or ()), *own)
    return ClientCallDetails(details.method, details.timeout, metadata, details.credentials, details.wait_for_ready)


class _Details(NamedTuple):
    """The attributes that gRPC expects of changed call details; gRPC has no class for them."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class MetadataInterceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """An interceptor that adds fresh metadata to every call of a synchronous channel."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """See grpc."""
        return continuation(self._signed(client_call_details), request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """See grpc."""
        return continuation(self._signed(client_call_details), request)

    def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        """See grpc."""
        return continuation(self._signed(client_call_details), request_iterator)

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        """See grpc."""
        return continuation(self._signed(client_call_details), request_iterator)

    def _signed(self, details: Any) -> _Details:
        metadata = (*(details.metadata or ()), *self._metadata())
        compression = getattr(details, "compression", None)
        return _Details(
            details.method, details.timeout, metadata, details.credentials, details.wait_for_ready, compression
        )
