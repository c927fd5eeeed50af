"""Addresses as settings write them (`host:port`, `unix:/path`) and as Envoy's configuration does."""

from __future__ import annotations

import ipaddress
from typing import Any

from services.settings.setting_reader import SettingError

LOCALHOST = "127.0.0.1"


def envoy_address(text: str) -> dict[str, Any]:
    """The address `unix:/path`, `host:port` or `[ipv6]:port` as Envoy's `core.v3.Address`."""
    if text.startswith("unix:"):
        return {"pipe": {"path": text.removeprefix("unix:"), "mode": 0o600}}
    host, port = split_host_port(text)
    return {"socket_address": {"address": host, "port_value": port}}


def listen_address(host: str, port: int) -> dict[str, Any]:
    """Where the gateway listens. Envoy takes only literals there; `::` takes IPv4 as well."""
    literal = _literal(host)
    address: dict[str, Any] = {"address": str(literal), "port_value": port}
    if literal == ipaddress.IPv6Address("::"):
        address["ipv4_compat"] = True
    return {"socket_address": address}


def bind_host(host: str) -> str:
    """The address literal of ALLM_HOST."""
    return str(_literal(host))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host` (ALLM_HOST)."""
    return _literal(host).is_loopback


def url_host(host: str) -> str:
    """`host` as it stands in a URL for a client on this machine: a wildcard address becomes a loopback one."""
    literal = _literal(host)
    if literal.is_unspecified:
        return LOCALHOST
    return f"[{literal}]" if literal.version == 6 else str(literal)


def needs_dns(text: str) -> bool:
    """Whether the address names a host that must be looked up."""
    if text.startswith("unix:"):
        return False
    try:
        ipaddress.ip_address(split_host_port(text)[0])
    except ValueError:
        return True
    return False


def split_host_port(text: str) -> tuple[str, int]:
    """`host:port` or `[ipv6]:port` in two."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{text!r} is neither unix:/path nor host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(LOCALHOST if host == "localhost" else host)
    except ValueError:
        raise SettingError("ALLM_HOST", host, "an IP address or localhost") from None
