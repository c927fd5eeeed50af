"""Fills in `envoy.template.yaml`: the one place where settings become Envoy's configuration."""

from __future__ import annotations

import json
import string
from dataclasses import dataclass
from pathlib import Path

from gateway.address import envoy_address, listen_address, needs_dns
from gateway.admission import host_pattern, listed_origins_pattern
from gateway.descriptor import facade_descriptors, facade_names, method_names
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
    "x-stainless-arch",
    "x-stainless-async",
    "x-stainless-helper-method",
    "x-stainless-lang",
    "x-stainless-os",
    "x-stainless-package-version",
    "x-stainless-retry-count",
    "x-stainless-runtime",
    "x-stainless-runtime-version",
    "x-stainless-timeout",
    "x-user-agent",
)
# What the transcoder wraps around a body; so the body limit above it is the one that counts, to the byte.
FRAMING_BYTES = 65536
CONFIG_NAME = "envoy.yaml"
DESCRIPTOR_NAME = "facade.pb"


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway process: what its configuration depends on."""

    settings: GatewaySettings
    text: str  # where the text service listens: `unix:/path` or `host:port`
    admin: str  # where Envoy's admin interface listens: a Unix socket, or a loopback port; it has no login
    folder: Path  # where the rendered files go


def write_config(gateway: Gateway) -> Path:
    """Writes the descriptor set and the configuration into the gateway's folder; returns the configuration's path."""
    descriptor = gateway.folder / DESCRIPTOR_NAME
    descriptor.write_bytes(facade_descriptors().SerializeToString())
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
        "facade_names": facade_names(),
        "method_names": method_names(),
        "text_address": envoy_address(gateway.text),
        "text_discovery": "STRICT_DNS" if needs_dns(gateway.text) else "STATIC",
    }
    template = string.Template(TEMPLATE.read_text(encoding="utf-8"))
    return template.substitute({name: json.dumps(value) for name, value in values.items()})
