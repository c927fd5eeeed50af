"""Fetches pictures from the hosts that the operator allows.

Callers choose the addresses, so this must not become their way into the operator's network: it connects with https, to
listed hosts alone, and to an IP address that it has checked. A redirect is a new address.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin, urlsplit

from services.auth.caller import current_caller
from services.errors import InvalidRequest, RequestTooLarge
from services.sandbox.pool import FairQueue
from services.settings.setting import HTTPS_PORT, ascii_host, netloc

if TYPE_CHECKING:
    import httpcore2

REDIRECTS = 3
MAX_URL = 8192  # characters
AT_ONCE = 16  # pictures that are fetched at the same time
HEADERS = [("accept", "image/*"), ("accept-encoding", "identity"), ("user-agent", "allm")]
_OK, _MOVED = 200, (301, 302, 303, 307, 308)
_MARKS = "%/:=&?~#+!$,;'@()*[]"  # left as they are in an address
_GLOBAL = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")  # its last four bytes are an IPv4 address


class Unfetchable(Exception):
    """The reason why there is no picture; the rest of a sentence about it."""


@dataclass(frozen=True, slots=True)
class Address:
    """A checked address of a picture."""

    host: str
    port: int
    target: str  # path and query

    @property
    def shown(self) -> str:
        """The address in errors: its query may be a signature."""
        return netloc(self.host, self.port)


class PictureFetcher:
    """Fetches up to AT_ONCE pictures at the same time; `queue` more may wait, and callers take turns."""

    def __init__(self, hosts: Iterable[str], *, max_bytes: int, queue: int, seconds: float) -> None:
        """`hosts`: as in ALLM_IMAGE_HOSTS; `max_bytes`: of a picture; `seconds`: for a picture, redirects included."""
        self._hosts = frozenset(hosts)
        self._listed = frozenset(found for host in self._hosts if (found := _ip_of(host)))
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._tls: ssl.SSLContext | None = None
        self._turns = FairQueue(
            AT_ONCE, queue, lambda waiting: f"{AT_ONCE} images are being fetched and {waiting} wait (ALLM_IMAGE_QUEUE)"
        )

    async def fetch(self, url: str, param: str, take: Callable[[int], None]) -> bytes:
        """Returns the file at an address.

        Args:
            url: the caller's.
            param: the caller's name of it, for errors.
            take: called with the number of bytes of each piece; its errors are passed on.

        Raises:
            InvalidRequest: the address is not allowed, or there is no file, or it takes too long.
            RequestTooLarge: the file is over the limit.
            Overloaded: too many pictures are being fetched.
        """
        try:
            async with self._turns.place(current_caller().identity.subject), asyncio.timeout(self._seconds):
                return await self._follow(url, param, take)
        except TimeoutError:
            message = f"'{param}' took longer than {self._seconds:g} seconds to be fetched (ALLM_IMAGE_FETCH_SECONDS)."
            raise InvalidRequest(message, param=param) from None
        except Unfetchable as why:
            raise InvalidRequest(f"'{param}' {why}.", param=param) from None

    async def _follow(self, url: str, param: str, take: Callable[[int], None]) -> bytes:
        for _ in range(REDIRECTS + 1):
            address = self.checked(url)
            async with self._opened(address) as response:
                if response.status not in _MOVED:
                    return await self._body(response, address, param, take)
                url = _joined(url, _header(response, b"location"))
        raise Unfetchable(f"leads from one address to another more than {REDIRECTS} times")

    def checked(self, url: str) -> Address:
        """Reads an address. Raises Unfetchable if a picture may not be fetched from there."""
        if len(url) > MAX_URL:
            raise Unfetchable(f"is an address of over {MAX_URL} characters")
        try:
            parts = urlsplit(url)
            host, port = ascii_host(parts.hostname or ""), parts.port
        except ValueError:
            raise Unfetchable("is no valid address") from None
        if parts.scheme != "https" or not host:
            raise Unfetchable("must be an https address, a data URL, or an image that this server has drawn")
        if netloc(host, port) not in self._hosts:
            where = f"is at {netloc(host, port)}, from where this server fetches no images (ALLM_IMAGE_HOSTS)"
            raise Unfetchable(f"{where}: send the image itself, as a data URL")
        if parts.username is not None:
            raise Unfetchable("must be an address without user and password")
        target = quote(f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/", safe=_MARKS)
        return Address(host, port or HTTPS_PORT, target)

    @contextlib.asynccontextmanager
    async def _opened(self, address: Address) -> AsyncIterator[httpcore2.Response]:
        """Requests a picture, at the first of its host's IP addresses that accepts a connection."""
        self._tls = self._tls or await asyncio.to_thread(_load)
        import httpcore2  # noqa: PLC0415 (takes 0.1 s)

        async with contextlib.AsyncExitStack() as stack:
            pool = await stack.enter_async_context(httpcore2.AsyncConnectionPool(self._tls))
            try:
                yield await self._connected(pool, stack, address)
            except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as error:
                # The text of a ProtocolError may quote the host, which may be one that the caller cannot reach itself.
                why = str(error) if isinstance(error, httpcore2.ConnectError) else type(error).__name__
                raise Unfetchable(f"cannot be fetched from {address.shown}: {why}") from None

    async def _connected(
        self, pool: httpcore2.AsyncConnectionPool, stack: contextlib.AsyncExitStack, address: Address
    ) -> httpcore2.Response:
        import httpcore2  # noqa: PLC0415

        ips = await self._resolved(address)
        headers = [("host", address.shown), *HEADERS]
        # The name is still the one that the certificate must have.
        extensions = {"sni_hostname": address.host, "timeout": {"connect": self._seconds / len(ips)}}
        for number, ip in enumerate(ips, 1):
            url = httpcore2.URL(scheme="https", host=str(ip), port=address.port, target=address.target)
            try:
                return await stack.enter_async_context(pool.stream("GET", url, headers=headers, extensions=extensions))
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if number == len(ips):
                    raise
        raise AssertionError("a host has an address")

    async def _resolved(self, address: Address) -> list[IPv4Address | IPv6Address]:
        """Returns the IP addresses of a host to which a connection is allowed. Raises Unfetchable if there are none."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise Unfetchable(f"is at {address.shown}, which this server's network does not know") from None
        ips = [ip_address(each[4][0]) for each in found]
        allowed = [ip for ip in ips if ip in self._listed or is_public(ip)]
        if not allowed:
            raise Unfetchable(f"is at {address.shown}, which is an address of a private network (ALLM_IMAGE_HOSTS)")
        return allowed

    async def _body(
        self, response: httpcore2.Response, address: Address, param: str, take: Callable[[int], None]
    ) -> bytes:
        if response.status != _OK:
            raise Unfetchable(f"cannot be fetched: {address.shown} answers with status {response.status}")
        large = f"'{param}' is over the limit of {self._max_bytes} bytes (ALLM_MAX_IMAGE_BYTES)."
        length = _header(response, b"content-length")
        if length.isdigit() and int(length) > self._max_bytes:
            raise RequestTooLarge(large, param=param)
        data = bytearray()
        async for piece in response.aiter_stream():
            if len(data) + len(piece) > self._max_bytes:
                raise RequestTooLarge(large, param=param)
            take(len(piece))
            data += piece
        return bytes(data)


def is_public(ip: IPv4Address | IPv6Address) -> bool:
    """Returns whether an address is one of the public internet; for IPv6, also that of the IPv4 network behind it."""
    if isinstance(ip, IPv4Address):
        return ip.is_global and not ip.is_multicast
    inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo or (None, None))[1]
    if ip in _NAT64:
        inner = IPv4Address(int(ip) & 0xFFFFFFFF)
    return is_public(inner) if inner else ip in _GLOBAL and ip.is_global


def _ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """Returns the address that an entry of ALLM_IMAGE_HOSTS is; None for a name."""
    with contextlib.suppress(ValueError):
        return ip_address(urlsplit(f"https://{host}").hostname or "")
    return None


def _load() -> ssl.SSLContext:
    """Loads the certificates that this machine trusts, and the library, which both take a moment."""
    import httpcore2  # noqa: F401, PLC0415

    logging.getLogger("httpcore2").setLevel(logging.WARNING)  # it logs headers with signed addresses
    return ssl.create_default_context()


def _joined(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        raise Unfetchable("leads to an address that is not valid") from None


def _header(response: httpcore2.Response, name: bytes) -> str:
    """Returns the first header of this name; empty: there is none."""
    return next((value.decode("latin-1") for key, value in response.headers if key.lower() == name), "")
