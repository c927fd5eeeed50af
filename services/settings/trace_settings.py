"""Trace settings: the collector, sampling, and trust in callers' traces."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from services.settings.setting_reader import SettingError, SettingReader

ENDPOINT = "ALLM_OTLP_ENDPOINT"
EXTRA = "unset, or the extra installed: pip install 'allm-server[traces]'"
DEFAULT_PORT = 4317
_HEADER_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_HEADER_VALUE = re.compile(r"[\x20-\x24\x26-\x7e]+")  # ASCII without %, which Envoy cannot pass on


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Settings of traces over OTLP/gRPC. With an empty host none are made, and OpenTelemetry is not imported."""

    host: str  # ALLM_OTLP_ENDPOINT: the collector's host
    port: int
    tls: bool  # whether the URL is https://
    ca_file: Path | None  # ALLM_OTLP_CA_FILE: the collector's authorities; None: those of the system
    sampling: float  # ALLM_TRACE_SAMPLING: share of the traces that begin here
    parents: str  # ALLM_TRACE_PARENTS: auto, accept or ignore callers' own `traceparent`
    # ALLM_OTLP_HEADERS: sent with every request to the collector, such as its token.
    headers: tuple[tuple[str, str], ...] = field(repr=False)

    @property
    def wanted(self) -> bool:
        """Whether tracing is enabled."""
        return bool(self.host)

    @property
    def authorities(self) -> Path:
        """The PEM file of the authorities for an https:// collector. It may not exist."""
        paths = ssl.get_default_verify_paths()
        return self.ca_file or Path(paths.cafile or paths.openssl_cafile)


NO_TRACES = TraceSettings("", 0, tls=False, ca_file=None, sampling=1.0, parents="auto", headers=())


def read_traces(read: SettingReader) -> TraceSettings:
    """Reads and checks trace settings. Raises SettingError, which never contains a header's value."""
    host, port, tls = _endpoint(read)
    ca_file = read.text("ALLM_OTLP_CA_FILE", "")
    return TraceSettings(
        host=host,
        port=port,
        tls=tls,
        ca_file=Path(ca_file).expanduser().absolute() if ca_file else None,
        sampling=read.number("ALLM_TRACE_SAMPLING", 1.0, 0.0, 1.0),
        parents=read.choice("ALLM_TRACE_PARENTS", "auto", ("auto", "accept", "ignore")),
        headers=_headers(read),
    )


def _endpoint(read: SettingReader) -> tuple[str, int, bool]:
    url = read.text(ENDPOINT, "")
    if not url:
        return "", 0, False
    try:
        parts = urlsplit(url)
        port = DEFAULT_PORT if parts.port is None else parts.port
        whole = parts.hostname and port and parts.username is None and not (parts.path.strip("/") or parts.query)
    except ValueError:  # an invalid port
        whole = None
    if not whole or parts.scheme not in ("http", "https") or parts.fragment:
        # Not the value: it may contain a user and password.
        raise SettingError(ENDPOINT, "...", f"http://host:{DEFAULT_PORT} or https://host:{DEFAULT_PORT}, and no more")
    return str(parts.hostname), port, parts.scheme == "https"


def _headers(read: SettingReader) -> tuple[tuple[str, str], ...]:
    found = []
    for part in read.names("ALLM_OTLP_HEADERS"):
        name, _, value = (side.strip() for side in part.partition("="))
        if not _HEADER_NAME.fullmatch(name.lower()) or not _HEADER_VALUE.fullmatch(value):
            raise SettingError("ALLM_OTLP_HEADERS", "...", "name=value pairs, comma-separated, in ASCII and without %")
        found.append((name.lower(), value))
    return tuple(found)
