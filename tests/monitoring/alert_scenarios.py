"""For each alert: a situation that fires it, its text, and a similar situation that must not fire it."""

from __future__ import annotations

from dataclasses import dataclass

Series = dict[str, str]  # series -> its values, a minute apart, in promtool's syntax


@dataclass(frozen=True)
class Scenario:
    """The series that fire an alert after `at` minutes, and series that do not."""

    alert: str
    firing: Series
    quiet: Series
    summary: str
    labels: dict[str, str]
    at: int = 30


M = 'model="m"'
EDGE = 'envoy_http_conn_manager_prefix="edge"'
TEXT = 'envoy_cluster_name="text"'


def waits(name: str, within_10: str, within_30: str) -> Series:
    """Returns a histogram of two buckets."""
    bucket = f"{name}_bucket"
    return {
        f'{bucket}{{{M},le="10"}}': within_10,
        f'{bucket}{{{M},le="30"}}': within_30,
        f'{bucket}{{{M},le="+Inf"}}': within_30,
    }


SCENARIOS = (
    Scenario(
        "AllmProcessDown",
        {'up{job="allm-text",instance="a:1"}': "1x5 0x30"},
        {'up{job="allm-text",instance="a:1"}': "1x28 0x1 1x9", 'up{job="other",instance="b"}': "0x40"},
        "a:1 of allm-text does not answer Prometheus.",
        {"job": "allm-text", "instance": "a:1"},
    ),
    Scenario(
        "AllmNoReplica",
        {
            'allm_replicas_live{modality="audio"}': "1x5 0x30",
            'envoy_cluster_upstream_cx_none_healthy{envoy_cluster_name="audio"}': "0+1x40",
        },
        {
            # Scaled to zero, and without requests.
            'allm_replicas_live{modality="audio"}': "0x40",
            'envoy_cluster_upstream_cx_none_healthy{envoy_cluster_name="audio"}': "7x40",
        },
        "The audio service receives requests, but no replica reports to the catalog.",
        {"modality": "audio"},
    ),
    Scenario(
        "AllmGatewayHasNoBackend",
        {f"envoy_cluster_membership_healthy{{{TEXT}}}": "0x40", f"envoy_cluster_membership_total{{{TEXT}}}": "2x40"},
        {
            f"envoy_cluster_membership_healthy{{{TEXT}}}": "1x40",
            f"envoy_cluster_membership_total{{{TEXT}}}": "2x40",
            # The audio service is optional.
            'envoy_cluster_membership_healthy{envoy_cluster_name="audio"}': "0x40",
            'envoy_cluster_membership_total{envoy_cluster_name="audio"}': "0x40",
        },
        "The gateway reaches no replica of text.",
        {"envoy_cluster_name": "text"},
    ),
    Scenario(
        "AllmGatewayErrors",
        {
            f'envoy_http_downstream_rq_xx{{{EDGE},envoy_response_code_class="5"}}': "0+10x40",
            f'envoy_http_downstream_rq_xx{{{EDGE},envoy_response_code_class="2"}}': "0+90x40",
        },
        {
            f'envoy_http_downstream_rq_xx{{{EDGE},envoy_response_code_class="5"}}': "0+4x40",
            f'envoy_http_downstream_rq_xx{{{EDGE},envoy_response_code_class="2"}}': "0+96x40",
        },
        "10% of the gateway's responses are 5xx.",
        {},
    ),
    Scenario(
        "AllmErrors",
        {
            f'allm_errors_total{{{M},code="INTERNAL",rpc="r"}}': "0+20x40",
            f'allm_requests_total{{{M},rpc="r"}}': "0+100x40",
        },
        {
            f'allm_errors_total{{{M},code="INVALID_REQUEST",rpc="r"}}': "0+50x40",
            f'allm_requests_total{{{M},rpc="r"}}': "0+100x40",
        },
        "20% of the requests for m fail with a server error.",
        {"model": "m"},
    ),
    Scenario(
        "AllmOverloaded",
        {
            f'allm_errors_total{{{M},code="OVERLOADED",rpc="r"}}': "0+50x40",
            f'allm_requests_total{{{M},rpc="r"}}': "0+100x40",
        },
        {
            f'allm_errors_total{{{M},code="OVERLOADED",rpc="r"}}': "0+1x40",
            f'allm_requests_total{{{M},rpc="r"}}': "0+100x40",
        },
        "50% of the requests for m are rejected.",
        {"model": "m"},
    ),
    Scenario(
        "AllmQueueSlow",
        waits("allm_request_queue_seconds", "0x40", "0+10x40"),
        waits("allm_request_queue_seconds", "0+10x40", "0+10x40"),
        "5% of the requests for m wait in the queue for more than 29s.",
        {"model": "m"},
    ),
    Scenario(
        "AllmFirstTokenSlow",
        waits("gen_ai_server_time_to_first_token_seconds", "0x40", "0+10x40"),
        waits("gen_ai_server_time_to_first_token_seconds", "0+10x40", "0+10x40"),
        "The 95th percentile of the time to first token of m is 29s.",
        {"model": "m"},
    ),
    Scenario(
        "AllmStuck",
        {f"allm_requests_waiting{{{M}}}": "3x40", f"allm_engine_steps_total{{{M}}}": "7x40"},
        {f"allm_requests_waiting{{{M}}}": "3x40", f"allm_engine_steps_total{{{M}}}": "0+60x40"},
        "Requests for m wait, but its workers compute no steps.",
        {"model": "m"},
    ),
    Scenario(
        "AllmWorkerDies",
        {f"allm_worker_deaths_total{{{M}}}": "0x20 1x2 2x20"},
        {f"allm_worker_deaths_total{{{M}}}": "0x20 1x20"},
        "The worker of m has died 2 times within 15 minutes.",
        {"model": "m"},
    ),
    Scenario(
        "AllmLoadFails",
        {f'allm_model_load_failures_total{{{M},code="MODEL_INVALID"}}': "0x20 1x2 3x20"},
        {f'allm_model_load_failures_total{{{M},code="MODEL_INVALID"}}': "0x20 1x20"},
        "m cannot be loaded: MODEL_INVALID.",
        {"model": "m", "code": "MODEL_INVALID"},
    ),
    Scenario(
        "AllmMemoryShort",
        {'allm_memory_pressure{instance="a:1",place="host"}': "0x10 1x30"},
        {'allm_memory_pressure{instance="a:1",place="host"}': "0x26 1x3 0x10"},
        "host of a:1 has been above the memory threshold for 5 minutes.",
        {"instance": "a:1", "place": "host"},
    ),
    Scenario(
        "AllmMemoryOverrun",
        {f"allm_memory_overruns_total{{{M}}}": "0x10 1x30"},
        {f"allm_memory_overruns_total{{{M}}}": "1x40"},
        "m uses over 15% more memory than its reservation.",
        {"model": "m"},
    ),
    Scenario(
        "AllmModelsPushEachOtherOut",
        {f'allm_model_evictions_total{{instance="a:1",{M},reason="admission"}}': "0+1x60"},
        {f'allm_model_evictions_total{{instance="a:1",{M},reason="idle"}}': "0+1x60"},
        "a:1 has evicted models 30 times within 30 minutes.",
        {"instance": "a:1"},
        at=50,
    ),
    Scenario(
        "AllmCacheTooSmall",
        {f"allm_requests_preempted_total{{{M}}}": "0+60x40"},
        {f"allm_requests_preempted_total{{{M}}}": "0+1x40"},
        "Requests for m restart 1 times per second for lack of KV cells.",
        {"model": "m"},
    ),
    Scenario(
        "AllmModelsFileWrong",
        {'allm_models_file_problems{instance="a:1"}': "2x40"},
        {'allm_models_file_problems{instance="a:1"}': "0x40"},
        "2 entries of the models file are not applied.",
        {"instance": "a:1"},
    ),
    Scenario(
        "AllmAuthorizerWithoutCatalog",
        {'allm_authorizer_catalog_up{instance="a:1"}': "0x40"},
        {'allm_authorizer_catalog_up{instance="a:1"}': "1x40"},
        "The authorizer a:1 cannot reach the catalog.",
        {"instance": "a:1"},
    ),
)
