"""The identity with which our own processes call each other, signed anew for every call.

Services, `allm serve` and the commands open their channels with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
from grpc.aio import ClientCallDetails, ClientInterceptor, UnaryStreamClientInterceptor, UnaryUnaryClientInterceptor

from services.auth.identity import ADMIN, HEADER, LIFETIME_SECONDS, SERVICE, Identity, sign
from services.auth.secret_file import ensure_secret, read_secret
from services.rpc.channel import blocking_channel, service_channel
from services.settings.settings import AuthSettings
from services.settings.tls_settings import ServiceTls
from services.telemetry import tracing

Now = Callable[[], float]
Shown = Callable[[], tuple[tuple[str, str], ...]]


class OwnIdentity:
    """This process's identity. Without a secret it is anonymous and sends no identity."""

    def __init__(
        self, secret: bytes | None, subject: str, clock: Now = time.time, tls: ServiceTls | None = None
    ) -> None:
        """`subject`: such as `service:text-1`. `clock`: seconds since the epoch. `tls`: this process's certificates."""
        self._tls = tls
        self._secret = secret
        self._identity = Identity(subject, frozenset((ADMIN, SERVICE)))
        self._clock = clock

    @classmethod
    def of_service(cls, auth: AuthSettings, replica: str, tls: ServiceTls | None = None) -> OwnIdentity:
        """Creates a service's identity. Raises SecretUnusable if keys are required and there is no secret."""
        return cls(read_secret(auth.secret_file) if auth.keys else None, f"service:{replica}", tls=tls)

    @classmethod
    def of_command(cls, auth: AuthSettings, name: str, tls: ServiceTls | None = None) -> OwnIdentity:
        """Creates the identity of the supervisor or a command; creates a missing secret. Raises SecretUnusable."""
        return cls(ensure_secret(auth.secret_file) if auth.keys else None, f"service:{name}", tls=tls)

    @property
    def is_known(self) -> bool:
        """Whether it sends an identity."""
        return self._secret is not None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns metadata for a call: the identity, valid for a minute, and the current trace."""
        if self._secret is None:
            return tracing.outgoing()
        expires = int(self._clock()) + LIFETIME_SECONDS
        identity = Identity(self._identity.subject, self._identity.scopes, expires=expires)
        return ((HEADER, sign(identity, self._secret)), *tracing.outgoing())

    def channel(self, address: str, options: Any = ()) -> grpc.aio.Channel:
        """Opens a channel whose calls carry the identity. The caller closes it."""
        interceptors: list[ClientInterceptor] = [_OneAnswer(self.metadata), _ManyAnswers(self.metadata)]
        shown = interceptors if self._secret is not None or tracing.tracer else []
        return service_channel(address, self._tls, options, shown)

    def blocking_channel(self, address: str, options: Any = ()) -> grpc.Channel:
        """Opens a synchronous channel whose calls carry the identity. The caller closes it."""
        channel = blocking_channel(address, self._tls, options)
        return channel if self._secret is None else grpc.intercept_channel(channel, Shows(self.metadata))


NOBODY = OwnIdentity(None, "")  # sends no identity


class _OneAnswer(UnaryUnaryClientInterceptor):
    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(_signed(client_call_details, self._shown()), request)


class _ManyAnswers(UnaryStreamClientInterceptor):
    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(_signed(client_call_details, self._shown()), request)


def _signed(details: ClientCallDetails, shown: tuple[tuple[str, str], ...]) -> ClientCallDetails:
    metadata = grpc.aio.Metadata(*(details.metadata or ()), *shown)
    return ClientCallDetails(details.method, details.timeout, metadata, details.credentials, details.wait_for_ready)


class _Details(NamedTuple):
    """The attributes that gRPC expects of changed call details; gRPC has no class for them."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class Shows(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """An interceptor that adds fresh metadata to every call of a synchronous channel."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown

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
        metadata = (*(details.metadata or ()), *self._shown())
        compression = getattr(details, "compression", None)
        return _Details(
            details.method, details.timeout, metadata, details.credentials, details.wait_for_ready, compression
        )
