"""The operator's listener: Envoy's own metrics for Prometheus, and its probes; nothing else of the admin interface.

It has no TLS, and the limit on connections does not apply to it, so no flood of clients delays a probe.
"""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.address import envoy_address, listen_address
from gateway.admin import until_it_works

PATH = "/stats/prometheus"
LIVE = "/livez"  # 200 while both the main thread and a worker thread run
READY = "/readyz"  # 200 while requests are admitted, as on the clients' listener
CLUSTER = "admin"
SECONDS = "10s"
IDLE_SECONDS = "120s"  # longer than the interval of any scrape or probe
_EXTENSIONS = "type.googleapis.com/envoy.extensions"
_HTTP = f"{_EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager"


def listeners(host: str, port: int, authorizers: int) -> list[dict[str, Any]]:
    """Returns the listener, or none for port 0. It admits `GET` of few paths: the interface can also stop Envoy.

    `authorizers`: the share of healthy authorizers, in percent, without which nothing is ready.
    """
    if not port:
        return []
    to_admin = {"cluster": CLUSTER, "timeout": SECONDS}
    routes = [
        {"match": _get(PATH), "route": to_admin},
        {"match": _get(LIVE), "route": {**to_admin, "prefix_rewrite": "/stats?filter=^server.live$"}},
    ]
    ready = {
        "@type": f"{_EXTENSIONS}.filters.http.health_check.v3.HealthCheck",
        "pass_through_mode": False,
        "cluster_min_healthy_percentages": {"authorizer": {"value": authorizers}},
        "headers": [{"name": ":path", "string_match": {"exact": READY}}],
    }
    manager = {
        "@type": _HTTP,
        "stat_prefix": "metrics",
        "codec_type": "AUTO",
        "request_timeout": SECONDS,
        "request_headers_timeout": SECONDS,
        "stream_idle_timeout": SECONDS,
        "route_config": {"virtual_hosts": [{"name": "metrics", "domains": ["*"], "routes": routes}]},
        "common_http_protocol_options": {"idle_timeout": IDLE_SECONDS},
        "http_filters": [
            {"name": "envoy.filters.http.health_check", "typed_config": ready},
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_EXTENSIONS}.filters.http.router.v3.Router"},
            },
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return [
        {
            "name": "metrics",
            "address": listen_address(host, port),
            "enable_reuse_port": False,
            "ignore_global_conn_limit": True,
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


def _get(path: str) -> dict[str, Any]:
    return {"path": path, "headers": [{"name": ":method", "string_match": {"exact": "GET"}}]}


async def wait_answer(host: str, port: int) -> None:
    """Waits until this listener answers: Envoy's main thread, through one that serves requests.

    The caller limits the time.
    """
    await until_it_works(lambda: _ask_live(host, port), OSError, EOFError)


async def _ask_live(host: str, port: int) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {LIVE} HTTP/1.1\r\nhost: allm\r\nconnection: close\r\n\r\n".encode())
        await reader.readexactly(1)
    finally:
        writer.close()
