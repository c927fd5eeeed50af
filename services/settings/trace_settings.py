"""Trace settings: the collector, sampling, and trust in callers' traces."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple
from urllib.parse import urlsplit

from services.settings import setting
from services.settings.setting import SettingError, split

ENDPOINT = "ALLM_OTLP_ENDPOINT"
EXTRA = "unset, or the extra installed: pip install 'allm-server[traces]'"
DEFAULT_PORT = 4317
_HEADER_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_HEADER_VALUE = re.compile(r"[\x20-\x24\x26-\x7e]+")  # ASCII without %, which Envoy cannot pass on


class Collector(NamedTuple):
    """The address of a collector of traces; with an empty host there is none."""

    host: str = ""
    port: int = 0
    tls: bool = False


def _collector(url: str) -> Collector:
    try:
        parts = urlsplit(url)
        port = DEFAULT_PORT if parts.port is None else parts.port
        whole = parts.hostname and port and parts.username is None and not (parts.path.strip("/") or parts.query)
    except ValueError:  # an invalid port
        whole = None
    if not whole or parts.scheme not in ("http", "https") or parts.fragment:
        # Not the value: it may contain a user and password.
        raise SettingError(ENDPOINT, "...", f"http://host:{DEFAULT_PORT} or https://host:{DEFAULT_PORT}, and no more")
    return Collector(str(parts.hostname), port, parts.scheme == "https")


def _headers(value: str) -> tuple[tuple[str, str], ...]:
    found = []
    for part in split(value):
        name, _, content = map(str.strip, part.partition("="))
        if not _HEADER_NAME.fullmatch(name.lower()) or not _HEADER_VALUE.fullmatch(content):
            raise SettingError("ALLM_OTLP_HEADERS", "...", "name=value pairs, comma-separated, in ASCII and without %")
        found.append((name.lower(), content))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """Settings of traces over OTLP/gRPC. With an empty host none are made, and OpenTelemetry is not imported."""

    SECTION: ClassVar = "Starting, stopping, watching"
    collector: Collector = setting.declare(
        ENDPOINT, Collector(), _collector, "gateway, services", allowed="`http://host:4317` or `https://host:4317`"
    )
    """collector to which gateway and services send traces, by OTLP over gRPC; unset: no traces
    ([tracing.md](tracing.md))"""
    ca_file: Path | None = setting.file(
        "ALLM_OTLP_CA_FILE", "gateway, services", allowed="path of a PEM file", means="the system's authorities"
    )
    """authorities that may sign the collector's certificate"""
    headers: tuple[tuple[str, str], ...] = setting.declare(
        "ALLM_OTLP_HEADERS", (), _headers, "gateway, services", True, allowed="list of `name=value`"
    )
    """headers of every request to the collector, such as its token; never logged"""
    sampling: float = setting.number("ALLM_TRACE_SAMPLING", 1.0, 0.0, 1.0, "share", "gateway, services")
    """share of new traces that is recorded; gateway and services make the same decision for each trace"""
    parents: str = setting.choice("ALLM_TRACE_PARENTS", "auto", ("auto", "accept", "ignore"), "gateway")
    """whether a caller's own `traceparent` counts; `auto`: only while the gateway listens on loopback
    ([tracing.md](tracing.md))"""

    @property
    def wanted(self) -> bool:
        """Returns whether tracing is enabled."""
        return bool(self.collector.host)

    @property
    def authorities(self) -> Path:
        """The PEM file of the authorities for an https:// collector. It may not exist."""
        paths = ssl.get_default_verify_paths()
        return self.ca_file or Path(paths.cafile or paths.openssl_cafile)


NO_TRACES = TraceSettings()
