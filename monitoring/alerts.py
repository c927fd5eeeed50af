"""All alerts. Each one needs an action; a condition that usually clears by itself fires only after a delay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from monitoring.machine_panels import EDGE, SERVICES

Severity = Literal["critical", "warning"]
RUNBOOK = "docs/alerts.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """A Prometheus rule. `summary` may use labels, as `{{ $labels.model }}`."""

    name: str
    expression: str
    lasting: str  # how long the expression must hold before the alert fires, such as 5m
    severity: Severity
    summary: str  # one sentence: the problem
    meaning: str  # for the runbook: the effect on users, and the cause
    action: str  # for the runbook: the steps to take, in order

    @property
    def anchor(self) -> str:
        """The alert's section of the runbook."""
        return f"{RUNBOOK}#{self.name.lower()}"

    def as_rule(self) -> dict[str, Any]:
        """Returns the rule in Prometheus's format."""
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.lasting,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.action, "runbook_url": self.anchor},
        }


FAULTS = "INTERNAL|TIMEOUT|OUT_OF_MEMORY|MODEL_NOT_READY"

ALERTS = (
    Alert(
        "AllmProcessDown",
        'up{job=~"allm.*"} == 0',
        "2m",
        "critical",
        "{{ $labels.instance }} of {{ $labels.job }} does not answer Prometheus.",
        "The process has ended or hangs, or Prometheus cannot reach its metrics port.",
        "Check that the process runs, and read the end of its log. On Kubernetes, run kubectl describe pod and read "
        "the log of the previous container. If the process serves requests, the network policy or "
        "ALLM_METRICS_HOST is wrong.",
    ),
    Alert(
        "AllmNoReplica",
        "max by (modality) (allm_replicas_live) == 0 and on (modality) sum by (modality) (label_replace("
        f'increase(envoy_cluster_upstream_cx_none_healthy{{{SERVICES}}}[5m]), "modality", "$1", '
        '"envoy_cluster_name", "(text|audio|image).*")) > 0',
        "2m",
        "critical",
        "The {{ $labels.modality }} service receives requests, but no replica reports to the catalog.",
        "Every request for a service without replicas fails with UNAVAILABLE (503). A service that is scaled to zero "
        "and receives no requests does not fire this alert.",
        "Start the service. If it runs, its log shows why it cannot reach the catalog (ALLM_CATALOG). If it starts on "
        "demand, find out why the start is slow.",
    ),
    Alert(
        "AllmGatewayHasNoBackend",
        f"sum by (envoy_cluster_name) (envoy_cluster_membership_healthy{{{SERVICES}}}) == 0"
        f" and sum by (envoy_cluster_name) (envoy_cluster_membership_total{{{SERVICES}}}) > 0",
        "1m",
        "critical",
        "The gateway reaches no replica of {{ $labels.envoy_cluster_name }}.",
        "The gateway answers requests for a service without healthy replicas with 503. The replicas may still run: "
        "they may be loading, draining, or unreachable.",
        "Query the health of a replica (grpc.health.v1), find the upstream's address in the gateway's log, and check "
        "the network between the two.",
    ),
    Alert(
        "AllmGatewayErrors",
        f'sum(rate(envoy_http_downstream_rq_xx{{{EDGE},envoy_response_code_class="5"}}[5m]))'
        f" / sum(rate(envoy_http_downstream_rq_xx{{{EDGE}}}[5m])) > 0.05",
        "5m",
        "critical",
        "{{ $value | humanizePercentage }} of the gateway's responses are 5xx.",
        "REST clients get errors. The rate includes errors of the gateway and of the services.",
        "If the dashboard panel Errors by code shows the same rate, check the services. Otherwise read `flags` and "
        "`details` of the failed requests in the gateway's access log.",
    ),
    Alert(
        "AllmErrors",
        f'sum by (model) (rate(allm_errors_total{{code=~"{FAULTS}"}}[5m]))'
        ' / sum by (model) (rate(allm_requests_total{rpc!~"ModelServicer.*"}[5m])) > 0.05',
        "5m",
        "critical",
        "{{ $value | humanizePercentage }} of the requests for {{ $labels.model }} fail with a server error.",
        "Clients get INTERNAL, TIMEOUT, OUT_OF_MEMORY or MODEL_NOT_READY. Client errors are not counted.",
        "Find the code on the dashboard, then a failed request in the service's log by its request id.",
    ),
    Alert(
        "AllmOverloaded",
        'sum by (model) (rate(allm_errors_total{code="OVERLOADED"}[5m])) / sum by (model) '
        "(rate(allm_requests_total[5m])) > 0.05",
        "10m",
        "warning",
        "{{ $value | humanizePercentage }} of the requests for {{ $labels.model }} are rejected.",
        "The load exceeds the capacity: clients get 429 with retry-after.",
        "Add replicas, redirect some of the load, or lower the limits of the API key with the most requests. A "
        "longer queue (ALLM_QUEUE_LIMIT) only increases the waiting time.",
    ),
    Alert(
        "AllmQueueSlow",
        "histogram_quantile(0.95, sum by (le, model) (rate(allm_request_queue_seconds_bucket[5m]))) > 10",
        "10m",
        "warning",
        "5% of the requests for {{ $labels.model }} wait in the queue for more than {{ $value | humanizeDuration }}.",
        "The batch is always full.",
        "Add replicas. On a GPU with free memory, raise ALLM_MAX_SEQUENCES.",
    ),
    Alert(
        "AllmFirstTokenSlow",
        "histogram_quantile(0.95, sum by (le, model) "
        "(rate(gen_ai_server_time_to_first_token_seconds_bucket[5m]))) > 10",
        "10m",
        "warning",
        "The 95th percentile of the time to first token of {{ $labels.model }} is {{ $value | humanizeDuration }}.",
        "The prompts are long, the queue is long, or other processes use the machine.",
        "If AllmQueueSlow fires too, follow its steps. Otherwise check the prompt tokens and the share of them in the "
        "prefix cache. Then check whether other processes use the cores or the GPU.",
    ),
    Alert(
        "AllmStuck",
        "sum by (model) (allm_requests_waiting) > 0 unless on (model) sum by (model) "
        "(rate(allm_engine_steps_total[5m])) > 0",
        "10m",
        "critical",
        "Requests for {{ $labels.model }} wait, but its workers compute no steps.",
        "The model does not finish loading, or its worker hangs and the watchdog does not detect it.",
        "Check the model's state (`allm models list`) and its load in the service's log. `allm models unload` stops "
        "the worker; the next request loads the model again.",
    ),
    Alert(
        "AllmWorkerDies",
        "sum by (model) (increase(allm_worker_deaths_total[15m])) >= 2",
        "0m",
        "critical",
        "The worker of {{ $labels.model }} has died {{ $value | humanize }} times within 15 minutes.",
        "The requests of a worker that dies fail with INTERNAL or TIMEOUT. Native code crashed, memory ran out, or "
        "the watchdog killed a stalled worker.",
        "The service's log shows how the worker ended. SIGKILL without a preceding `worker stalled` means that the "
        "kernel killed it for lack of memory: lower ALLM_KV_TOKENS or the batch size. SIGSEGV means a crash of the "
        "runtime: remove the model.",
    ),
    Alert(
        "AllmLoadFails",
        "sum by (model, code) (increase(allm_model_load_failures_total[15m])) >= 2",
        "0m",
        "critical",
        "{{ $labels.model }} cannot be loaded: {{ $labels.code }}.",
        "The model's requests fail with the error code of the load. After three "
        "consecutive failures they fail immediately, until a pause of up to 60 seconds ends.",
        "`allm models list` shows the reason. OUT_OF_MEMORY: see docs/residency.md. MODEL_INVALID: check the files. "
        "TIMEOUT: check the disk and ALLM_LOAD_SECONDS. `allm models load` retries immediately.",
    ),
    Alert(
        "AllmMemoryShort",
        "max by (instance, place) (allm_memory_pressure) == 1",
        "5m",
        "warning",
        "{{ $labels.place }} of {{ $labels.instance }} has been above the memory threshold for 5 minutes.",
        "All loaded models are in use and none can be unloaded. No further model is admitted.",
        "Find the user of the memory (dashboard row Memory and models). Unload a model or send its requests to "
        "another replica. If allm does not use the memory, find the other process.",
    ),
    Alert(
        "AllmMemoryOverrun",
        "sum by (model) (increase(allm_memory_overruns_total[1h])) > 0",
        "0m",
        "warning",
        "{{ $labels.model }} uses over 15% more memory than its reservation.",
        "The estimate was too low: the next model may be admitted although it does not fit.",
        "Lower ALLM_MEMORY_THRESHOLD for now, and report the model: services/*/memory_estimate.py estimates its "
        "memory.",
    ),
    Alert(
        "AllmModelsPushEachOtherOut",
        'sum by (instance) (increase(allm_model_evictions_total{reason!="idle"}[30m])) > 10',
        "10m",
        "warning",
        "{{ $labels.instance }} has evicted models {{ $value | humanize }} times within 30 minutes.",
        "The requested models do not fit into memory together: most requests wait for a load.",
        "Move models to other replicas, pin the important ones (`allm models load`), or add memory.",
    ),
    Alert(
        "AllmCacheTooSmall",
        "sum by (model) (rate(allm_requests_preempted_total[10m])) > 0.1",
        "10m",
        "warning",
        "Requests for {{ $labels.model }} restart {{ $value | humanize }} times per second for lack of KV cells.",
        "Requests outgrow the key-value cache. They are computed again, which slows down all requests.",
        "Raise ALLM_KV_TOKENS if memory allows; otherwise lower ALLM_MAX_SEQUENCES.",
    ),
    Alert(
        "AllmModelsFileWrong",
        "max by (instance) (allm_models_file_problems) > 0",
        "5m",
        "warning",
        "{{ $value }} entries of the models file are not applied.",
        "The served models differ from ALLM_MODELS_FILE.",
        "The catalog's log names each entry and its problem.",
    ),
    Alert(
        "AllmAuthorizerWithoutCatalog",
        "max by (instance) (allm_authorizer_catalog_up) == 0",
        "5m",
        "warning",
        "The authorizer {{ $labels.instance }} cannot reach the catalog.",
        "Known API keys still work, also those revoked since. New keys do not work.",
        "Restart the catalog, or restore the connection from the authorizer to it (ALLM_CATALOG).",
    ),
)


def rules() -> dict[str, Any]:
    """Returns the rules as the content of a Prometheus rules file."""
    return {"groups": [{"name": "allm", "rules": [alert.as_rule() for alert in ALERTS]}]}
