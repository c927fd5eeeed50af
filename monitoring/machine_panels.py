"""Panels for memory, model loading and the gateway."""

from __future__ import annotations

from monitoring.panel import MODEL, WINDOW, Panel, Query, quantiles, rate, total

EDGE = 'envoy_http_conn_manager_prefix="edge"'
SERVICES = 'envoy_cluster_name=~"text.*|audio|image|catalog|authorizer"'


def _memory(metric: str, by: str, needed: bool) -> tuple[Query, ...]:
    kinds = {"used": "used", "total": "total", "threshold": "threshold"}
    if by != "instance":
        kinds["ours"] = "allm models"
    return tuple(
        Query(f'max by ({by}) ({metric}{{kind="{kind}"}})', f"{word} {{{{{by}}}}}", needed)
        for kind, word in kinds.items()
    )


MEMORY = (
    Panel(
        "Host memory",
        "bytes",
        _memory("allm_host_memory_bytes", "instance", needed=True),
        "The dashed line is ALLM_MEMORY_THRESHOLD, 90% by default. Above it, idle models are unloaded.",
    ),
    Panel(
        "GPU memory",
        "bytes",
        _memory("allm_device_memory_bytes", "device", needed=False),
        "The same for each GPU.",
    ),
    Panel(
        "Memory pressure",
        "short",
        (Query("max by (place) (allm_memory_pressure)", "{{place}}", must_have_data=False),),
        "1 while the host or a GPU is above the threshold.",
    ),
    Panel("Host memory of workers", "bytes", (total("allm_worker_memory_bytes"),), "Including mapped files."),
    Panel(
        "GPU memory of workers",
        "bytes",
        (total("allm_worker_device_memory_bytes", "{{model}} {{device}}", "model, device", needed=False),),
        "GPU memory that each model's worker uses.",
    ),
    Panel(
        "Unloaded models",
        "short",
        (
            Query(
                f"sum by (model, reason) (increase(allm_model_evictions_total{{{MODEL}}}[{WINDOW}]))",
                "{{model}} {{reason}}",
                must_have_data=False,
            ),
        ),
        "By reason; docs/residency.md explains the reasons.",
    ),
    Panel("Load time", "s", quantiles("allm_model_load_seconds", needed=False), "Including the wait for free memory."),
    Panel(
        "Failed loads",
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
        "Worker deaths and restarts",
        "short",
        (
            Query(f"sum by (model) (increase(allm_worker_deaths_total{{{MODEL}}}[{WINDOW}]))", "{{model}} died"),
            Query(f"sum by (model) (increase(allm_worker_restarts_total{{{MODEL}}}[{WINDOW}]))", "{{model}} restarted"),
        ),
        "The death of a worker ends its requests.",
    ),
)
GATEWAY = (
    Panel(
        "Gateway responses",
        "reqps",
        (rate("envoy_http_downstream_rq_xx", "envoy_response_code_class", EDGE, "{{envoy_response_code_class}}xx"),),
        "By class of the HTTP status. Errors of gRPC calls count as 2xx: see Errors by code.",
    ),
    Panel(
        "Open requests and connections",
        "short",
        (
            Query(f"sum(envoy_http_downstream_rq_active{{{EDGE}}})", "requests"),
            Query(f"sum(envoy_http_downstream_cx_active{{{EDGE}}})", "connections"),
        ),
        "Requests and client connections that are open in the gateway.",
    ),
    Panel(
        "Healthy replicas",
        "short",
        (
            Query(
                f"sum by (envoy_cluster_name) (envoy_cluster_membership_healthy{{{SERVICES}}})",
                "{{envoy_cluster_name}}",
            ),
        ),
        "Replicas that pass the gateway's health checks.",
    ),
    Panel(
        "Retries",
        "ops",
        (rate("envoy_cluster_upstream_rq_retry", "envoy_cluster_name", SERVICES),),
        "Requests per second that the gateway retried on another replica.",
    ),
    Panel(
        "Failed connections to services",
        "ops",
        (rate("envoy_cluster_upstream_cx_connect_fail", "envoy_cluster_name", SERVICES),),
        "Failed connection attempts per second.",
    ),
    Panel(
        "API key checks",
        "reqps",
        (rate("allm_authorizer_checks_total", "outcome", "", needed=False),),
        "Decisions of the authorizer per second, with ALLM_AUTH=keys.",
    ),
    Panel(
        "Traffic",
        "Bps",
        (
            rate("envoy_http_downstream_cx_rx_bytes_total", "envoy_http_conn_manager_prefix", EDGE, "in"),
            rate("envoy_http_downstream_cx_tx_bytes_total", "envoy_http_conn_manager_prefix", EDGE, "out"),
        ),
        "Bytes per second between clients and the gateway.",
    ),
)
