"""Addresses in the format of the settings (`host:port`, `unix:/path`) and in that of Envoy's configuration.

Without keys or another guard in front, the gateway is reachable only from this machine.
"""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from typing import Any

from services.settings.gateway_settings import GatewaySettings
from services.settings.setting import SettingError

LOCALHOST = "127.0.0.1"


def envoy_address(text: str) -> dict[str, Any]:
    """Converts `unix:/path`, `host:port` or `[ipv6]:port` to Envoy's `core.v3.Address`."""
    if text.startswith("unix:"):
        return {"pipe": {"path": text.removeprefix("unix:"), "mode": 0o600}}
    host, port = split_host_port(text)
    return {"socket_address": {"address": host, "port_value": port}}


def listen_address(host: str, port: int) -> dict[str, Any]:
    """Returns the gateway's listen address. Envoy accepts only literals here; `::` includes IPv4."""
    literal = _literal(host)
    address: dict[str, Any] = {"address": str(literal), "port_value": port}
    if literal == ipaddress.IPv6Address("::"):
        address["ipv4_compat"] = True
    return {"socket_address": address}


def bind_host(host: str) -> str:
    """Returns the address literal of ALLM_HOST."""
    return str(_literal(host))


def is_loopback(host: str) -> bool:
    """Reports whether only this machine can reach a listener on `host` (ALLM_HOST)."""
    return _literal(host).is_loopback


def url_host(host: str) -> str:
    """Returns `host` for a URL used on this machine: a wildcard address becomes a loopback one."""
    literal = _literal(host)
    if literal.is_unspecified:
        return LOCALHOST
    return f"[{literal}]" if literal.version == 6 else str(literal)


def needs_dns(text: str) -> bool:
    """Reports whether the address has a host name that needs DNS."""
    if text.startswith("unix:"):
        return False
    try:
        ipaddress.ip_address(split_host_port(text)[0])
    except ValueError:
        return True
    return False


def split_host_port(text: str) -> tuple[str, int]:
    """Splits `host:port` or `[ipv6]:port`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{text!r} is neither unix:/path nor host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(LOCALHOST if host == "localhost" else host)
    except ValueError:
        raise SettingError("ALLM_HOST", host, "an IP address or localhost") from None


UNGUARDED = "none"  # value of ALLM_AUTH
KEYS = "keys"


def is_confined(settings: GatewaySettings) -> bool:
    """Reports whether ALLM_HOST is overridden, because anybody who could reach it could use the models."""
    return settings.auth == UNGUARDED and not is_loopback(settings.host)


def confined(settings: GatewaySettings) -> GatewaySettings:
    """Returns the settings with the host that the gateway really listens on."""
    return replace(settings, host=LOCALHOST) if is_confined(settings) else settings
