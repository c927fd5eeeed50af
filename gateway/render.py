"""Fills in `envoy.template.yaml`: the one place where settings become Envoy's configuration."""

from __future__ import annotations

import json
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.address import envoy_address, listen_address, needs_dns
from gateway.admission import host_pattern, listed_origins_pattern
from gateway.descriptor import method_names, transcoded_descriptors, transcoded_names
from services.rpc.settings import GatewaySettings

TEMPLATE = Path(__file__).with_name("envoy.template.yaml")
FALLBACK = Path(__file__).with_name("fallback.lua")
# What OpenAI's SDKs and gRPC-Web clients send beyond the headers that need no permission.
CORS_REQUEST_HEADERS = (
    "authorization",
    "content-type",
    "grpc-timeout",
    "idempotency-key",
    "openai-organization",
    "openai-project",
    "x-grpc-web",
    "x-request-id",
    "x-request-timeout",
    "x-stainless-arch",
    "x-stainless-async",
    "x-stainless-helper-method",
    "x-stainless-lang",
    "x-stainless-os",
    "x-stainless-package-version",
    "x-stainless-read-timeout",
    "x-stainless-retry-count",
    "x-stainless-runtime",
    "x-stainless-runtime-version",
    "x-stainless-timeout",
    "x-user-agent",
)
# What the transcoder wraps around a body; so the body limit above it is the one that counts, to the byte.
FRAMING_BYTES = 65536
CONFIG_NAME = "envoy.yaml"
DESCRIPTOR_NAME = "transcoded.pb"
# What may be tried again without a servicer ever having seen it; with other replicas, also what one refused. What comes
# in the moment in which a replica begins to stop is ended by gRPC as cancelled.
UNSEEN = "connect-failure,refused-stream,reset-before-request"
REFUSED = f"{UNSEEN},unavailable,cancelled"
# Beyond so many a request has waited long enough; behind a name there may be any number of replicas.
MOST_RETRIES = 15
RETRIES_BEHIND_NAMES = 4
# The balancer takes the less busy of two hosts drawn at random. So the only one of n that is new is found by a draw in
# n * n at worst; after 16 times as many it has been missed with a probability of e**-16.
DRAWS = 16


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway process: what its configuration depends on."""

    settings: GatewaySettings
    text: tuple[str, ...]  # where the text service's replicas listen, one at least: `unix:/path` or `host:port`
    catalog: str  # where the catalog listens, in the same way
    admin: str  # where Envoy's admin interface listens: a Unix socket, or a loopback port; it has no login
    folder: Path  # where the rendered files go
    audio: tuple[str, ...] = ()  # where the audio service's replicas listen; none: there is no such service
    image: tuple[str, ...] = ()  # likewise those of the image service

    def __post_init__(self) -> None:
        """Raises ValueError where the replicas' addresses cannot be those of one cluster."""
        if not self.text:
            raise ValueError("the gateway needs the address of one text replica at least")
        for replicas in (self.text, self.audio, self.image):
            if _discovery(replicas) == "STRICT_DNS" and any(address.startswith("unix:") for address in replicas):
                raise ValueError(f"Unix sockets and names cannot be replicas of one service: {', '.join(replicas)}")


def write_config(gateway: Gateway) -> Path:
    """Writes the descriptor set and the configuration into the gateway's folder; returns the configuration's path."""
    descriptor = gateway.folder / DESCRIPTOR_NAME
    descriptor.write_bytes(transcoded_descriptors().SerializeToString())
    config = gateway.folder / CONFIG_NAME
    config.write_text(render(gateway, descriptor), encoding="utf-8")
    return config


def render(gateway: Gateway, descriptor: Path) -> str:
    """The configuration as YAML. Every placeholder is filled with JSON, so that no value can break out of its place."""
    settings = gateway.settings
    values = {
        "admin_address": envoy_address(gateway.admin),
        "listen_address": listen_address(settings.host, settings.port),
        "host_pattern": host_pattern(settings),
        "listed_origins_pattern": listed_origins_pattern(settings),
        "cors_origins": [{"exact": origin} for origin in settings.cors_origins],
        "cors_request_headers": ", ".join(CORS_REQUEST_HEADERS),
        "max_body_bytes": settings.max_body_bytes,
        "transcoder_body_bytes": settings.max_body_bytes + FRAMING_BYTES,
        "fallback_path": str(FALLBACK),
        "descriptor_path": str(descriptor),
        "transcoded_names": transcoded_names(),
        "method_names": method_names(),
        **_replicas("text", gateway.text),
        **_replicas("audio", gateway.audio),
        **_replicas("image", gateway.image),
        "catalog_discovery": _discovery((gateway.catalog,)),
        "catalog_endpoints": _endpoints((gateway.catalog,)),
    }
    template = string.Template(TEMPLATE.read_text(encoding="utf-8"))
    return template.substitute({name: json.dumps(value) for name, value in values.items()})


def _replicas(service: str, addresses: tuple[str, ...]) -> dict[str, Any]:
    """What is said of a service that may have several replicas, each of which is asked once for what others refused."""
    retries = _retries(addresses)
    return {
        f"{service}_discovery": _discovery(addresses),
        f"{service}_endpoints": _endpoints(addresses),
        f"{service}_retry_on": REFUSED if retries else UNSEEN,
        f"{service}_read_retry_on": f"{REFUSED if retries else UNSEEN},reset",
        f"{service}_retries": max(1, retries),
        f"{service}_draws": DRAWS * (retries + 1) ** 2,
    }


def _discovery(addresses: tuple[str, ...]) -> str:
    return "STRICT_DNS" if any(map(needs_dns, addresses)) else "STATIC"


def _endpoints(addresses: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{"endpoint": {"address": envoy_address(address)}} for address in addresses]


def _retries(addresses: tuple[str, ...]) -> int:
    """How many other replicas a request may be tried on. The only replica is not asked again for what it refused."""
    if _discovery(addresses) == "STRICT_DNS":
        return RETRIES_BEHIND_NAMES
    return min(max(len(addresses) - 1, 0), MOST_RETRIES)
