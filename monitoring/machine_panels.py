"""Panels of memory, of loading, and of the gateway."""

from __future__ import annotations

from monitoring.panel import Panel, Query
from monitoring.queries import MODEL, WINDOW, quantiles, rate, total

EDGE = 'envoy_http_conn_manager_prefix="edge"'
SERVICES = 'envoy_cluster_name=~"text.*|audio|image|catalog|authorizer"'


def _memory(metric: str, by: str, needed: bool) -> tuple[Query, ...]:
    kinds = {"used": "used", "total": "total", "threshold": "threshold"}
    if by != "instance":
        kinds["ours"] = "models of allm"
    return tuple(
        Query(f'max by ({by}) ({metric}{{kind="{kind}"}})', f"{word} {{{{{by}}}}}", needed)
        for kind, word in kinds.items()
    )


MEMORY = (
    Panel(
        "Host memory",
        "bytes",
        _memory("allm_host_memory_bytes", "instance", needed=True),
        "The dashed line is ALLM_MEMORY_THRESHOLD, 90% by default: above it idle models are unloaded.",
    ),
    Panel(
        "GPU memory",
        "bytes",
        _memory("allm_device_memory_bytes", "device", needed=False),
        "Likewise for each GPU.",
    ),
    Panel(
        "Short of memory",
        "short",
        (Query("max by (place) (allm_memory_pressure)", "{{place}}", must_have_data=False),),
        "1 while a place is above the threshold.",
    ),
    Panel("Workers on the host", "bytes", (total("allm_worker_memory_bytes"),), "Mapped files included."),
    Panel(
        "Workers on GPUs",
        "bytes",
        (total("allm_worker_device_memory_bytes", "{{model}} {{device}}", "model, device", needed=False),),
        "What the worker of each model holds.",
    ),
    Panel(
        "Models that were unloaded",
        "short",
        (
            Query(
                f"sum by (model, reason) (increase(allm_model_evictions_total{{{MODEL}}}[{WINDOW}]))",
                "{{model}} {{reason}}",
                must_have_data=False,
            ),
        ),
        "By reason; docs/residency.md explains them.",
    ),
    Panel("Time to load", "s", quantiles("allm_model_load_seconds", needed=False), "Waiting for room included."),
    Panel(
        "Loads that failed",
        "short",
        (
            Query(
                f"sum by (model, code) (increase(allm_model_load_failures_total{{{MODEL}}}[{WINDOW}]))",
                "{{model}} {{code}}",
            ),
        ),
        "By error code.",
    ),
    Panel(
        "Workers that died, and came back",
        "short",
        (
            Query(f"sum by (model) (increase(allm_worker_deaths_total{{{MODEL}}}[{WINDOW}]))", "{{model}} died"),
            Query(f"sum by (model) (increase(allm_worker_restarts_total{{{MODEL}}}[{WINDOW}]))", "{{model}} restarted"),
        ),
        "Each death ends the requests that ran there.",
    ),
)
GATEWAY = (
    Panel(
        "Answers of the gateway",
        "reqps",
        (rate("envoy_http_downstream_rq_xx", "envoy_response_code_class", EDGE, "{{envoy_response_code_class}}xx"),),
        "By class of the HTTP status. Errors of gRPC callers are 2xx here: see Errors by code.",
    ),
    Panel(
        "Requests in the gateway",
        "short",
        (
            Query(f"sum(envoy_http_downstream_rq_active{{{EDGE}}})", "requests"),
            Query(f"sum(envoy_http_downstream_cx_active{{{EDGE}}})", "connections"),
        ),
        "What is open now.",
    ),
    Panel(
        "Healthy replicas, as the gateway sees them",
        "short",
        (
            Query(
                f"sum by (envoy_cluster_name) (envoy_cluster_membership_healthy{{{SERVICES}}})",
                "{{envoy_cluster_name}}",
            ),
        ),
        "Those that answer its health checks.",
    ),
    Panel(
        "Tried again",
        "ops",
        (rate("envoy_cluster_upstream_rq_retry", "envoy_cluster_name", SERVICES),),
        "Requests that went to another replica, a second.",
    ),
    Panel(
        "Lost connections to services",
        "ops",
        (rate("envoy_cluster_upstream_cx_connect_fail", "envoy_cluster_name", SERVICES),),
        "Connections that could not be made, a second.",
    ),
    Panel(
        "API keys",
        "reqps",
        (rate("allm_authorizer_checks_total", "outcome", "", needed=False),),
        "What the authorizer said of requests, a second; with ALLM_AUTH=keys.",
    ),
    Panel(
        "Bytes",
        "Bps",
        (
            rate("envoy_http_downstream_cx_rx_bytes_total", "envoy_http_conn_manager_prefix", EDGE, "in"),
            rate("envoy_http_downstream_cx_tx_bytes_total", "envoy_http_conn_manager_prefix", EDGE, "out"),
        ),
        "Between clients and the gateway.",
    ),
)
