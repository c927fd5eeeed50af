"""Envoy's own metrics for Prometheus: a listener for them, and for nothing else of the admin interface."""

from __future__ import annotations

from typing import Any

from gateway.address import envoy_address, listen_address

PATH = "/stats/prometheus"
CLUSTER = "admin"
SECONDS = "10s"
_EXTENSIONS = "type.googleapis.com/envoy.extensions"
_HTTP = f"{_EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager"


def listeners(host: str, port: int) -> list[dict[str, Any]]:
    """Returns the listener, or none for port 0. It admits only `GET` of one path: the interface can also stop Envoy."""
    if not port:
        return []
    only = {"path": PATH, "headers": [{"name": ":method", "string_match": {"exact": "GET"}}]}
    routes = [{"match": only, "route": {"cluster": CLUSTER, "timeout": SECONDS}}]
    manager = {
        "@type": _HTTP,
        "stat_prefix": "metrics",
        "codec_type": "AUTO",
        "request_timeout": SECONDS,
        "request_headers_timeout": SECONDS,
        "stream_idle_timeout": SECONDS,
        "route_config": {"virtual_hosts": [{"name": "metrics", "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_EXTENSIONS}.filters.http.router.v3.Router"},
            }
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return [
        {
            "name": "metrics",
            "address": listen_address(host, port),
            "enable_reuse_port": False,
            "ignore_global_conn_limit": True,  # metrics must stay readable during a flood of connections
            "filter_chains": [chain],
        }
    ]


def clusters(admin: str, port: int) -> list[dict[str, Any]]:
    """Returns the cluster of that listener: the admin interface at `admin`. None for port 0."""
    if not port:
        return []
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": envoy_address(admin)}}]}]
    return [
        {
            "name": CLUSTER,
            "type": "STATIC",
            "connect_timeout": "1s",
            "load_assignment": {"cluster_name": CLUSTER, "endpoints": endpoints},
        }
    ]
