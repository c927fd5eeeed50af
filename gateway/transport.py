"""TLS in Envoy's configuration: towards clients, and towards the services.

Certificates are named in small separate files, as secrets: only from there does Envoy reload a new certificate or key.
It notices files that are moved into place, as Kubernetes does with a mounted Secret.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from services.settings.tls_settings import SERVICE_NAME, KeyPair, ServiceTls

_TYPES = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"
_OLDEST = {"tls_minimum_protocol_version": "TLSv1_2"}
EDGE, SERVICE, AUTHORITY = "edge", "service", "authority"


def write_secrets(folder: Path, edge: KeyPair | None, service: ServiceTls | None) -> None:
    """Writes the files that name the certificates for Envoy. They contain only paths."""
    if edge:
        _write(folder, EDGE, {"tls_certificate": _pair(edge)})
    if service:
        _write(folder, SERVICE, {"tls_certificate": _pair(service.pair)})
        believed = {
            "trusted_ca": {"filename": str(service.authority)},
            "watched_directory": {"path": str(service.authority.parent)},
            "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": SERVICE_NAME}}],
        }
        _write(folder, AUTHORITY, {"validation_context": believed})


def edge_transport(folder: Path, pair: KeyPair | None) -> dict[str, Any] | None:
    """Returns the listener's transport socket; None: no TLS."""
    if pair is None:
        return None
    context = {
        "tls_params": _OLDEST,
        "alpn_protocols": ["h2", "http/1.1"],
        "tls_certificate_sds_secret_configs": [_secret(folder, EDGE)],
    }
    return _socket("DownstreamTlsContext", {"common_tls_context": context})


def service_transport(folder: Path, tls: ServiceTls | None, addresses: tuple[str, ...]) -> dict[str, Any] | None:
    """Returns the transport socket towards a service; None: no TLS, as on Unix sockets, which are local."""
    if tls is None or any(address.startswith("unix:") for address in addresses):
        return None
    context = {
        "tls_params": _OLDEST,
        "alpn_protocols": ["h2"],
        "tls_certificate_sds_secret_configs": [_secret(folder, SERVICE)],
        "validation_context_sds_secret_config": _secret(folder, AUTHORITY),
    }
    return _socket("UpstreamTlsContext", {"sni": SERVICE_NAME, "common_tls_context": context})


def _socket(kind: str, context: dict[str, Any]) -> dict[str, Any]:
    return {"name": "envoy.transport_sockets.tls", "typed_config": {"@type": f"{_TYPES}.{kind}", **context}}


def _secret(folder: Path, name: str) -> dict[str, Any]:
    source = {"path_config_source": {"path": str(_path(folder, name))}, "resource_api_version": "V3"}
    return {"name": name, "sds_config": source}


def _pair(pair: KeyPair) -> dict[str, Any]:
    files: dict[str, Any] = {
        "certificate_chain": {"filename": str(pair.certificate)},
        "private_key": {"filename": str(pair.key)},
    }
    if pair.certificate.parent == pair.key.parent:  # with two folders Envoy can only watch the files themselves
        files["watched_directory"] = {"path": str(pair.certificate.parent)}
    return files


def _write(folder: Path, name: str, secret: dict[str, Any]) -> None:
    resource = {"@type": f"{_TYPES}.Secret", "name": name, **secret}
    _path(folder, name).write_text(json.dumps({"resources": [resource]}), encoding="utf-8")


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}-certificates.json"
