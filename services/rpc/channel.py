"""Channels between our own processes, and the identity with which these call each other, signed anew for every call.

A channel is plain text on Unix sockets or without certificates, otherwise mutual TLS. Certificates are renewed while we
run, and a gRPC channel keeps its certificates for its whole life. So `service_channel` returns a channel that creates a
new one for new calls when the files have changed.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import grpc
from grpc.aio import ClientCallDetails, ClientInterceptor, UnaryStreamClientInterceptor, UnaryUnaryClientInterceptor

from services.auth.identity import HEADER, LIFETIME_SECONDS, own_identity, sign
from services.auth.identity_keys import OPERATOR, SigningKey, read_key
from services.settings.gateway_settings import AuthSettings
from services.settings.tls_settings import SERVICE_NAME, ServiceTls
from services.telemetry import tracing

log = logging.getLogger(__name__)
Options = Sequence[tuple[str, Any]]
Interceptors = Sequence[grpc.aio.ClientInterceptor]
# Replaces the address in the check: clients reach replicas at container addresses, which no certificate names.
_NAME = (("grpc.ssl_target_name_override", SERVICE_NAME),)


@dataclass(frozen=True, slots=True)
class Certificates:
    """The content of the files, in PEM."""

    authority: bytes
    chain: bytes
    key: bytes


class CertificateFiles:
    """The certificate files, read again when they have changed. Any thread may call it, one at a time."""

    def __init__(self, tls: ServiceTls) -> None:
        self._tls = tls
        self._stamp: tuple[tuple[int, int, int], ...] = ()

    def first(self) -> Certificates:
        """Returns the certificates at the start. Raises OSError if they cannot be used."""
        found = self.news()
        if found is None:
            raise OSError(f"{self._tls.pair.certificate} and {self._tls.pair.key} do not match")
        return found

    def news(self) -> Certificates | None:
        """Returns the certificates if they have changed since the last call; None also during a replacement."""
        try:
            stamp = self._now()
            if stamp == self._stamp:
                return None
            pair = self._tls.pair
            found = Certificates(self._tls.authority.read_bytes(), pair.certificate.read_bytes(), pair.key.read_bytes())
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(pair.certificate, pair.key, password="")
            if stamp != self._now():
                return None
        except (OSError, ValueError) as error:  # the pair is incomplete; an SSLError is an OSError
            log.warning("new certificates cannot be used yet", extra={"reason": str(error)})
            return None
        self._stamp = stamp
        return found

    def _now(self) -> tuple[tuple[int, int, int], ...]:
        files = (self._tls.authority, self._tls.pair.certificate, self._tls.pair.key)
        states = (file.stat() for file in files)
        return tuple((state.st_ino, state.st_mtime_ns, state.st_size) for state in states)


def service_channel(
    address: str, tls: ServiceTls | None, options: Options = (), interceptors: Interceptors = ()
) -> grpc.aio.Channel:
    """Opens a channel to `host:port` or `unix:/path`. Raises OSError if the certificates cannot be used."""
    if is_plain(address, tls):
        return grpc.aio.insecure_channel(address, options=tuple(options), interceptors=tuple(interceptors))
    files = CertificateFiles(_given(tls))

    def make(found: Certificates) -> grpc.aio.Channel:
        named = (*options, *_NAME)
        return grpc.aio.secure_channel(address, _credentials(found), options=named, interceptors=tuple(interceptors))

    return _RenewedChannel(files, make)


def blocking_channel(address: str, tls: ServiceTls | None, options: Options = ()) -> grpc.Channel:
    """Opens a synchronous, short-lived channel with the current certificates."""
    if is_plain(address, tls):
        return grpc.insecure_channel(address, options=tuple(options))
    found = CertificateFiles(_given(tls)).first()
    return grpc.secure_channel(address, _credentials(found), options=(*options, *_NAME))


def server_credentials(tls: ServiceTls) -> grpc.ServerCredentials:
    """Returns credentials that require a client certificate. Raises OSError if the files cannot be used."""
    files = CertificateFiles(tls)

    def configured(found: Certificates) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(found.key, found.chain)], found.authority)

    def renewed() -> Any:
        """Called by gRPC at every handshake; None: no change. gRPC's published types omit that case."""
        found = files.news()
        return configured(found) if found else None

    return grpc.dynamic_ssl_server_credentials(configured(files.first()), renewed, require_client_authentication=True)


def is_plain(address: str, tls: ServiceTls | None) -> bool:
    """Returns whether the connection is unencrypted: Unix sockets always are, because only this host reaches them."""
    return tls is None or address.startswith("unix:")


def _given(tls: ServiceTls | None) -> ServiceTls:
    if tls is None:
        raise ValueError("there are no certificates")
    return tls


def _credentials(found: Certificates) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(found.authority, found.key, found.chain)


class _RenewedChannel(grpc.aio.Channel):
    """A channel that sends each call through a gRPC channel with the latest certificates."""

    def __init__(self, files: CertificateFiles, make: Callable[[Certificates], grpc.aio.Channel]) -> None:
        self._files = files
        self._make = make
        # Earlier channels stay open for their calls: without any they are idle, and a new one comes every few weeks.
        self._channels = [make(files.first())]

    def current(self) -> grpc.aio.Channel:
        """Returns the channel for a new call."""
        if found := self._files.news():
            self._channels.append(self._make(found))
        return self._channels[-1]

    async def __aenter__(self) -> _RenewedChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Closes all channels."""
        for channel in self._channels:
            await channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Returns the current channel's state."""
        return self.current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Waits for a state change of the current channel."""
        await self.current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Waits until the current channel is connected."""
        await self.current().channel_ready()

    def unary_unary(self, *args: Any, **named: Any) -> Any:
        """Creates a call with one message each way."""
        return self._method("unary_unary", args, named)

    def unary_stream(self, *args: Any, **named: Any) -> Any:
        """Creates a call that answers with a stream."""
        return self._method("unary_stream", args, named)

    def stream_unary(self, *args: Any, **named: Any) -> Any:
        """Creates a call that sends a stream."""
        return self._method("stream_unary", args, named)

    def stream_stream(self, *args: Any, **named: Any) -> Any:
        """Creates a call with a stream each way."""
        return self._method("stream_stream", args, named)

    def _method(self, kind: str, args: tuple[Any, ...], named: dict[str, Any]) -> Callable[..., Any]:
        made: dict[grpc.aio.Channel, Callable[..., Any]] = {}

        def call(*given: Any, **options: Any) -> Any:
            channel = self.current()
            if channel not in made:
                made.clear()
                made[channel] = getattr(channel, kind)(*args, **named)
            return made[channel](*given, **options)

        return call


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
        """Continues a call, or any stream, with the metadata; gRPC takes all other details from the call."""
        metadata = (*(client_call_details.metadata or ()), *self._metadata())
        return continuation(SimpleNamespace(metadata=metadata), request)

    def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        """See `intercept_unary_unary`."""
        return self.intercept_unary_unary(continuation, client_call_details, request_iterator)

    intercept_unary_stream = intercept_unary_unary
    intercept_stream_stream = intercept_stream_unary
