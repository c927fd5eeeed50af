"""Envoy's part of traces: its tracer, the collector's cluster, and the callers whose traces it continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.address import envoy_address, is_loopback, needs_dns
from services.settings.trace_settings import TraceSettings

CLUSTER = "otlp"
SERVICE = "allm-gateway"
# The headers that name a request's parent trace (W3C Trace Context).
PARENT_HEADERS = ("traceparent", "tracestate")
CLIENT_TRACE = "x-client-trace-id"  # Envoy's own old header, which it would write into spans
FLUSH_MILLISECONDS = 1000
EXPORT_SECONDS = 5
PERCENT = 100
MILLION = 1_000_000
# Tags that add to Envoy's own or replace them: whole addresses would include queries, where people put secrets.
TAGS = {
    "allm.request_id": "%REQ(X-REQUEST-ID)%",
    "allm.client": "%REQ(X-CLIENT-ID)%",
    "allm.attempt": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "http.url": "%PATH(NQ:ORIG_OR_PATH):256%",
    "user_agent": "%REQ(USER-AGENT):128%",
}
_EXTENSIONS = "type.googleapis.com/envoy.extensions"
_SAMPLERS = "envoy.tracers.opentelemetry.samplers"
_CODEC = {
    "name": "envoy.filters.http.upstream_codec",
    "typed_config": {"@type": f"{_EXTENSIONS}.filters.http.upstream_codec.v3.UpstreamCodec"},
}
_WITHOUT_MESSAGES = {
    "name": "envoy.filters.http.lua",
    "typed_config": {
        "@type": f"{_EXTENSIONS}.filters.http.lua.v3.Lua",
        "default_source_code": {"filename": str(Path(__file__).with_name("spans.lua"))},
    },
}
_TRACE = "type.googleapis.com/envoy.config.trace.v3"


def tracing(trace: TraceSettings) -> dict[str, Any] | None:
    """Returns the connection manager's tracing settings; None: no traces."""
    if not trace.wanted:
        return None
    every, never = {"value": PERCENT}, {"value": 0}
    return {
        "provider": {
            "name": "envoy.tracers.opentelemetry",
            "typed_config": {
                "@type": f"{_TRACE}.OpenTelemetryConfig",
                "service_name": SERVICE,
                "grpc_service": {
                    "envoy_grpc": {"cluster_name": CLUSTER},
                    "timeout": f"{EXPORT_SECONDS}s",
                    "initial_metadata": [{"key": name, "value": value} for name, value in trace.headers],
                },
                "sampler": _sampler(trace.sampling),
            },
        },
        "client_sampling": never,  # Envoy's own header, by which callers could have themselves traced
        "random_sampling": every,  # the sampler decides
        "overall_sampling": every,
        "spawn_upstream_span": True,
        # The RPC, because OpenAI's paths contain ids.
        "operation": "%REQ(X-ENVOY-ORIGINAL-METHOD?:METHOD)% %PATH(NQ:PATH):128%",
        "upstream_operation": "%UPSTREAM_CLUSTER%",
        "custom_tags": [{"tag": name, "value": value} for name, value in TAGS.items()],
    }


def runtime(trace: TraceSettings) -> dict[str, int]:
    """Returns values of Envoy's runtime: spans are sent every second instead of every five."""
    return {"tracing.opentelemetry.flush_interval_ms": FLUSH_MILLISECONDS} if trace.wanted else {}


def cluster(trace: TraceSettings) -> dict[str, Any]:
    """Returns the collector's cluster. It may be down: only spans wait for it."""
    host, port, tls = trace.collector
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return {
        "name": CLUSTER,
        "type": "STRICT_DNS" if needs_dns(address) else "STATIC",
        "dns_lookup_family": "V4_PREFERRED",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_EXTENSIONS}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
                "http_filters": [_WITHOUT_MESSAGES, _CODEC],
            },
        },
        "circuit_breakers": {"thresholds": [{"max_connections": 4, "max_requests": 64, "max_pending_requests": 64}]},
        "transport_socket": _tls(host, trace.authorities) if tls else None,
        "load_assignment": {
            "cluster_name": CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": envoy_address(address)}}]}],
        },
    }


def removed_parents(trace: TraceSettings, host: str) -> tuple[str, ...]:
    """Returns headers to remove from requests, so that every trace begins here. `host`: the gateway's listen host.

    A caller that may name its request's trace can have any number of them recorded, whatever the sampling share, and
    write into others' traces. So only programs on this machine, or callers that the operator trusts, may do so.
    """
    if not trace.wanted:
        return ()
    trusted = trace.parents == "accept" or (trace.parents == "auto" and is_loopback(host))
    return (CLIENT_TRACE,) if trusted else (CLIENT_TRACE, *PARENT_HEADERS)


def _sampler(share: float) -> dict[str, Any]:
    """Follows the parent's decision for a continued trace; samples a share of new traces, by their ids."""
    ratio = {
        "name": f"{_SAMPLERS}.trace_id_ratio_based",
        "typed_config": {
            "@type": f"{_EXTENSIONS}.tracers.opentelemetry.samplers.v3.TraceIdRatioBasedSamplerConfig",
            "sampling_percentage": {"numerator": round(share * MILLION), "denominator": "MILLION"},
        },
    }
    return {
        "name": f"{_SAMPLERS}.parent_based",
        "typed_config": {
            "@type": f"{_EXTENSIONS}.tracers.opentelemetry.samplers.v3.ParentBasedSamplerConfig",
            "wrapped_sampler": ratio,
        },
    }


def _tls(host: str, authorities: Path) -> dict[str, Any]:
    name = {"san_type": _san_type(host), "matcher": {"exact": host}}
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{_EXTENSIONS}.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": host,
            "common_tls_context": {
                "alpn_protocols": ["h2"],
                "validation_context": {
                    "trusted_ca": {"filename": str(authorities)},
                    "match_typed_subject_alt_names": [name],
                },
            },
        },
    }


def _san_type(host: str) -> str:
    return "DNS" if needs_dns(f"[{host}]:1" if ":" in host else f"{host}:1") else "IP_ADDRESS"
