"""Fills in `envoy.template.yaml`: the only code that turns settings into Envoy's configuration."""

from __future__ import annotations

import json
import os
import secrets
import string
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway import address_limit, console, stats, traces
from gateway.address import KEYS, confined, envoy_address, is_loopback, listen_address, needs_dns
from gateway.admission import PATH_PATTERN, host_pattern, listed_origins_pattern
from gateway.descriptor import method_names, transcoded_descriptors, transcoded_names
from gateway.process import connection_limit, worker_count
from gateway.text_groups import NO_GROUPS, TextGroups, cluster_name
from gateway.transport import edge_transport, service_transport, write_secrets
from services.settings.gateway_settings import GatewaySettings
from services.settings.tls_settings import TlsSettings
from services.settings.trace_settings import NO_TRACES, TraceSettings

TEMPLATE = Path(__file__).with_name("envoy.template.yaml")
FALLBACK = Path(__file__).with_name("fallback.lua")
ERROR_SHAPES = Path(__file__).with_name("error_shapes.lua")
UNFINISHED = Path(__file__).with_name("unfinished.lua")
# The headers that OpenAI's and Anthropic's SDKs and gRPC-Web clients send, beyond those that need no permission.
CORS_REQUEST_HEADERS = (
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "anthropic-version",
    "authorization",
    "content-type",
    "grpc-timeout",
    "idempotency-key",
    "openai-organization",
    "openai-project",
    "traceparent",
    "tracestate",
    "x-api-key",
    "x-grpc-web",
    "x-model",
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
# The transcoder's framing around a body; the body limit above it stays exact to the byte.
FRAMING_BYTES = 65536
# By default Envoy refuses to start with a regular expression as long as a few names of ALLM_ALLOWED_HOSTS.
RUNTIME = {"re2.max_program_size.error_level": 100_000, "re2.max_program_size.warn_level": 100_000}
CONFIG_NAME = "envoy.yaml"
DESCRIPTOR_NAME = "transcoded.pb"
# Errors that are retried because no servicer has seen the request; with other replicas, also those that one replica
# refused. gRPC ends a request as cancelled if it arrives just when a replica begins to stop.
UNSEEN = "connect-failure,refused-stream,reset-before-request"
REFUSED = f"{UNSEEN},unavailable,cancelled"
# Limit on retries: by then a request has waited long enough; a name may stand for any number of replicas.
MOST_RETRIES = 15
RETRIES_BEHIND_NAMES = 4
# The balancer picks the less busy of two hosts drawn at random. So the only untried one of n is found by a draw in
# n * n at worst; after 16 times as many draws it is missed with a probability of e**-16.
DRAWS = 16
# Retries go to other hosts, so waiting does not help.
RETRY_SOON = {"base_interval": "0.005s", "max_interval": "0.025s"}
OTHER_HOST = {
    "name": "envoy.retry_host_predicates.previous_hosts",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
    },
}
# Health calls need no key: so many Watch calls, and so many Check calls, for so long.
HEALTH_REQUESTS = 64
WATCH_SECONDS = "60s"
STALLED_SECONDS = 30  # without a byte of a request's body
LEAST_IDLE_SECONDS = 2.0  # of connections without requests, when there are too many connections
# The exact limit of the clients' listener. The global one is also lowered by connections of listeners that it exempts
# (Envoy 1.40): each of them that is closed lets in one more client. It shows the pressure.
CONNECTION_LIMIT = "envoy.resource_limits.listener.edge.connection_limit"
ADDRESSES_TO_FILL = 4  # so many can take all connections, unless ALLM_GATEWAY_CONNECTIONS_PER_ADDRESS is set
# It waits for the first bytes, so a connection that sends none is closed in time.
FIRST_BYTE_FILTER = {
    "name": "envoy.filters.listener.http_inspector",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.listener.http_inspector.v3.HttpInspector",
    },
}
PLAIN = TlsSettings()
# These two use anchors of the template.
_LOCAL = (
    '{ "name": "local", "address": %s, "per_connection_buffer_limit_bytes": 262144, "ignore_global_conn_limit": true, '
    '"filter_chains": [ { "filters": [ *http ] } ] }'
)
_GROUP_CLUSTER = (
    '{ "name": ${name}, "type": ${discovery}, "load_assignment": { "cluster_name": ${name}, '
    '"endpoints": [ { "lb_endpoints": ${endpoints} } ] }, "transport_socket": ${transport}, '
    '"dns_lookup_family": "V4_PREFERRED", "connect_timeout": "1s", "lb_policy": "LEAST_REQUEST", '
    '"common_lb_config": *prompt, "per_connection_buffer_limit_bytes": 1048576, '
    '"typed_extension_protocol_options": *grpc, "health_checks": *serving, "outlier_detection": *unreachable, '
    '"circuit_breakers": *limits }'
)


@dataclass(frozen=True, slots=True)
class Gateway:
    """The parameters of one gateway's configuration."""

    settings: GatewaySettings
    text: tuple[str, ...]  # addresses of the text replicas, at least one: `unix:/path` or `host:port`
    catalog: str  # address of the catalog, in the same format
    admin: str  # address of Envoy's admin interface: a Unix socket, or a loopback port; it has no login
    folder: Path  # folder of the rendered files
    audio: tuple[str, ...] = ()  # addresses of the audio replicas; none: there is no such service
    image: tuple[str, ...] = ()  # likewise, of the image replicas
    groups: TextGroups = NO_GROUPS  # more text services, each for a group of models
    tls: TlsSettings = PLAIN  # the certificates
    trace: TraceSettings = NO_TRACES
    local: str = ""  # additional Unix socket to listen on, without TLS; empty: none
    direct: bool = False  # whether clients connect directly: behind a proxy, all of them have one address

    def __post_init__(self) -> None:
        """Raises ValueError if the addresses of a service cannot form one cluster."""
        if not self.text:
            raise ValueError("the gateway needs the address of one text replica at least")
        for replicas in (self.text, self.audio, self.image, *dict(self.groups.addresses).values()):
            sockets = [address for address in replicas if address.startswith("unix:")]
            if sockets and _discovery(replicas) == "STRICT_DNS":
                raise ValueError(f"Unix sockets and names cannot be replicas of one service: {', '.join(replicas)}")
            if sockets and self.tls.service and len(sockets) < len(replicas):
                what = "Unix sockets, which stay plain, and addresses that are encrypted"
                raise ValueError(f"{what}, cannot be replicas of one service: {', '.join(replicas)}")


def write_config(gateway: Gateway) -> Path:
    """Writes the descriptor set and the configuration into the gateway's folder; returns the configuration's path."""
    descriptor = gateway.folder / DESCRIPTOR_NAME
    descriptor.write_bytes(transcoded_descriptors().SerializeToString())
    write_secrets(gateway.folder, gateway.tls.edge, gateway.tls.service)
    console.write_packed(_static_files(gateway), gateway.folder)
    if most := _address_connections(gateway):
        share = max(1, most // worker_count(os.cpu_count() or 1))
        module = address_limit.assemble(share, secrets.randbits(32))
        (gateway.folder / address_limit.WASM_NAME).write_bytes(module)
    config = gateway.folder / CONFIG_NAME
    config.write_text(render(gateway, descriptor), encoding="utf-8")
    return config


def render(gateway: Gateway, descriptor: Path) -> str:
    """Renders the configuration as YAML. Every placeholder is filled with JSON, so no value can escape its field.

    In lists that also have entries in the template, a placeholder stands for more entries: JSON again, one per line.
    """
    settings, groups = confined(gateway.settings), gateway.groups
    asks = settings.auth == KEYS
    connections = connection_limit(settings.max_connections)
    limited = _address_connections(gateway) > 0
    counting = address_limit.network_filters(gateway.folder / address_limit.WASM_NAME) if limited else ()
    runtime = {CONNECTION_LIMIT: connections, **RUNTIME, **traces.runtime(gateway.trace)}
    values = {
        "admin_address": envoy_address(gateway.admin),
        "listen_address": listen_address(settings.host, settings.port),
        "host_pattern": host_pattern(settings),
        "path_pattern": PATH_PATTERN,
        "listed_origins_pattern": listed_origins_pattern(settings),
        "cors_origins": [{"exact": origin} for origin in settings.cors_origins],
        "cors_request_headers": ", ".join(CORS_REQUEST_HEADERS),
        "max_body_bytes": settings.max_body_bytes,
        "transcoder_body_bytes": settings.max_body_bytes + FRAMING_BYTES,
        "fallback_path": str(FALLBACK),
        "error_shapes_path": str(ERROR_SHAPES),
        "descriptor_path": str(descriptor),
        "transcoded_names": transcoded_names(),
        "method_names": method_names(),
        "edge_transport": edge_transport(gateway.folder, gateway.tls.edge),
        "without_groups": not groups.addresses,
        "without_keys": not asks,
        "authorizer_share": int(asks),  # of healthy authorizers, in percent
        "untouched": console.UNTOUCHED,
        "most_static_bytes": console.MOST_BYTES,
        # A silent connection reaches a filter that counts it only if no other filter waits for its first byte.
        "first_byte_filters": [] if limited else [FIRST_BYTE_FILTER],
        **_edge_limits(settings, connections),
        **_named("authorizer", _where((settings.authorizer,) if asks else (), gateway)),
        "runtime": {"layers": [{"name": "settings", "static_layer": runtime}]},
        "tracing": traces.tracing(gateway.trace),
        **_named("text", _replicas(gateway.text), _where(gateway.text, gateway)),
        **_named("audio", _replicas(gateway.audio), _where(gateway.audio, gateway)),
        **_named("image", _replicas(gateway.image), _where(gateway.image, gateway)),
        **_named("catalog", _where((gateway.catalog,), gateway)),
    }
    routes = groups.routes({name: _retry_policy(replicas) for name, replicas in groups.addresses})
    clusters = [_group_cluster(name, replicas, gateway) for name, replicas in groups.addresses]
    template = string.Template(TEMPLATE.read_text(encoding="utf-8"))
    return template.substitute(
        {name: json.dumps(value) for name, value in values.items()},
        local_listener=_entries([_LOCAL % json.dumps(envoy_address(gateway.local))] if gateway.local else [], 2),
        address_filters=_entries(map(json.dumps, counting), 6),
        group_routes=_entries(map(json.dumps, routes), 14),
        group_clusters=_entries(clusters, 2),
        console_routes=_entries(map(json.dumps, console.routes(_static_files(gateway), gateway.folder)), 14),
        metrics_listener=_entries(
            map(json.dumps, stats.listeners(settings.stats_host, settings.stats_port, int(asks))), 2
        ),
        metrics_cluster=_entries(map(json.dumps, stats.clusters(gateway.admin, settings.stats_port)), 2),
        trace_clusters=_entries([json.dumps(traces.cluster(gateway.trace))] if gateway.trace.wanted else [], 2),
        parent_mutations=_entries((json.dumps({"remove": name}) for name in _removed(gateway)), 14),
    )


def _address_connections(gateway: Gateway) -> int:
    """Returns how many connections one address may hold; 0: any number."""
    settings = gateway.settings
    if settings.address_connections is not None:
        return settings.address_connections
    if gateway.direct and settings.auth == KEYS and not is_loopback(settings.host):
        return max(1, connection_limit(settings.max_connections) // ADDRESSES_TO_FILL)
    return 0


def _edge_limits(settings: GatewaySettings, connections: int) -> dict[str, Any]:
    """Returns the placeholders of the limits on what one client can hold."""
    stalled = min(STALLED_SECONDS, settings.body_seconds)
    return {
        "max_connections": connections,
        "first_byte_seconds": f"{settings.first_byte_seconds:g}s",
        "idle_seconds": f"{settings.idle_seconds:g}s",
        "heap_bytes": settings.heap_bytes,
        "least_idle_seconds": f"{min(LEAST_IDLE_SECONDS, settings.idle_seconds):g}s",
        "unfinished_source": _unfinished(settings),
        "body_seconds": settings.body_seconds,
        "stalled_seconds": f"{stalled:g}s",
        "stalled_seconds_words": stalled,
        "health_requests": HEALTH_REQUESTS,
        "watch_seconds": WATCH_SECONDS,
    }


def _unfinished(settings: GatewaySettings) -> str:
    """Returns the script that limits unfinished bodies: to half of the heap, in equal shares for the worker threads."""
    share = settings.heap_bytes // 2 // worker_count(os.cpu_count() or 1)
    most = max(share, settings.max_body_bytes + FRAMING_BYTES)  # at least one body always fits
    return f"local SECONDS, BYTES = {settings.body_seconds}, {most}\n{UNFINISHED.read_text(encoding='utf-8')}"


def _static_files(gateway: Gateway) -> tuple[console.StaticFile, ...]:
    return console.static_files() if gateway.settings.console else ()


def _removed(gateway: Gateway) -> tuple[str, ...]:
    return traces.removed_parents(gateway.trace, gateway.settings.host)


def _entries(entries: Iterable[str], indent: int) -> str:
    """Formats more entries of a template's list; the template has indented the first of them."""
    return f"\n{' ' * indent}".join(f"- {entry}" for entry in entries)


def _group_cluster(group: str, addresses: tuple[str, ...], gateway: Gateway) -> str:
    """Returns a group's cluster: like that of the other text replicas, except for name and addresses."""
    values = {"name": cluster_name(group), **_where(addresses, gateway)}
    return string.Template(_GROUP_CLUSTER).substitute({name: json.dumps(value) for name, value in values.items()})


def _retry_policy(addresses: tuple[str, ...]) -> dict[str, Any]:
    retries = _replicas(addresses)
    return {
        "retry_on": retries["retry_on"],
        "num_retries": retries["retries"],
        "retry_back_off": RETRY_SOON,
        "retry_host_predicate": [OTHER_HOST],
        "host_selection_retry_max_attempts": retries["draws"],
    }


def _named(service: str, *values: dict[str, Any]) -> dict[str, Any]:
    """Returns a service's placeholders, each prefixed with the service's name."""
    return {f"{service}_{name}": value for part in values for name, value in part.items()}


def _where(addresses: tuple[str, ...], gateway: Gateway) -> dict[str, Any]:
    """Returns Envoy's discovery, endpoints and transport for a service's replicas."""
    return {
        "discovery": _discovery(addresses),
        "endpoints": _endpoints(addresses),
        "transport": service_transport(gateway.folder, gateway.tls.service, addresses),
    }


def _replicas(addresses: tuple[str, ...]) -> dict[str, Any]:
    """Returns the retry parameters of a replicated service: a refused request goes to each other replica once."""
    retries = _retries(addresses)
    return {
        "retry_on": REFUSED if retries else UNSEEN,
        "read_retry_on": f"{REFUSED if retries else UNSEEN},reset",
        "retries": max(1, retries),
        "draws": DRAWS * (retries + 1) ** 2,
    }


def _discovery(addresses: tuple[str, ...]) -> str:
    return "STRICT_DNS" if any(map(needs_dns, addresses)) else "STATIC"


def _endpoints(addresses: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{"endpoint": {"address": envoy_address(address)}} for address in addresses]


def _retries(addresses: tuple[str, ...]) -> int:
    """Returns the number of other replicas to retry on. A single replica is not retried after a refusal."""
    if _discovery(addresses) == "STRICT_DNS":
        return RETRIES_BEHIND_NAMES
    return min(max(len(addresses) - 1, 0), MOST_RETRIES)
