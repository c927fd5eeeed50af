"""All alerts. Each one is actionable; conditions that heal by themselves get enough time to do so."""

from __future__ import annotations

from typing import Any

from monitoring.alert import Alert
from monitoring.machine_panels import EDGE, SERVICES

FAULTS = "INTERNAL|TIMEOUT|OUT_OF_MEMORY|MODEL_NOT_READY"

ALERTS = (
    Alert(
        "AllmProcessDown",
        'up{job=~"allm.*"} == 0',
        "2m",
        "critical",
        "{{ $labels.instance }} of {{ $labels.job }} does not answer Prometheus.",
        "The process is gone, hangs as a whole, or its metrics port is closed to Prometheus.",
        "Look whether the process runs and what its log ends with; on Kubernetes: kubectl describe pod, and "
        "the log of the container before. If it serves, the network policy or ALLM_METRICS_HOST is wrong.",
    ),
    Alert(
        "AllmNoReplica",
        "max by (modality) (allm_replicas_live) == 0 and on (modality) sum by (modality) (label_replace("
        f'increase(envoy_cluster_upstream_cx_none_healthy{{{SERVICES}}}[5m]), "modality", "$1", '
        '"envoy_cluster_name", "(text|audio|image).*")) > 0',
        "2m",
        "critical",
        "Requests come for the {{ $labels.modality }} service, and none has reported to the catalog lately.",
        "Every request of that kind ends with UNAVAILABLE (503). A service that is scaled to zero, and that nobody "
        "asks for, is no alert.",
        "Start the service, or look in its log for why it cannot reach the catalog (ALLM_CATALOG). Where it starts on "
        "demand, see why it takes so long.",
    ),
    Alert(
        "AllmGatewayHasNoBackend",
        f"sum by (envoy_cluster_name) (envoy_cluster_membership_healthy{{{SERVICES}}}) == 0"
        f" and sum by (envoy_cluster_name) (envoy_cluster_membership_total{{{SERVICES}}}) > 0",
        "1m",
        "critical",
        "The gateway reaches no replica of {{ $labels.envoy_cluster_name }}.",
        "Requests of that kind get 503 from the gateway itself. The replicas may run: they may load, drain, "
        "or be cut off.",
        "Ask a replica for its health (grpc.health.v1), look at the gateway's log for the upstream's address,"
        " and check the network between both.",
    ),
    Alert(
        "AllmGatewayErrors",
        f'sum(rate(envoy_http_downstream_rq_xx{{{EDGE},envoy_response_code_class="5"}}[5m]))'
        f" / sum(rate(envoy_http_downstream_rq_xx{{{EDGE}}}[5m])) > 0.05",
        "5m",
        "critical",
        "{{ $value | humanizePercentage }} of the gateway's answers are 5xx.",
        "REST callers get errors; the gateway counts its own and those of the services.",
        "If the dashboard's Errors by code shows as many, look at the services; if not, the gateway's access "
        "log tells `flags` and `details` of each refusal.",
    ),
    Alert(
        "AllmErrors",
        f'sum by (model) (rate(allm_errors_total{{code=~"{FAULTS}"}}[5m]))'
        ' / sum by (model) (rate(allm_requests_total{rpc!~"ModelServicer.*"}[5m])) > 0.05',
        "5m",
        "critical",
        "{{ $value | humanizePercentage }} of the requests for {{ $labels.model }} end with a fault of the server.",
        "Callers get INTERNAL, TIMEOUT, OUT_OF_MEMORY or MODEL_NOT_READY; errors of callers are not counted here.",
        "See on the dashboard which code it is, and find one in the service's log by its request id.",
    ),
    Alert(
        "AllmOverloaded",
        'sum by (model) (rate(allm_errors_total{code="OVERLOADED"}[5m])) / sum by (model) '
        "(rate(allm_requests_total[5m])) > 0.05",
        "10m",
        "warning",
        "{{ $value | humanizePercentage }} of the requests for {{ $labels.model }} are turned away.",
        "More is asked than can be computed: callers get 429 with retry-after.",
        "Add replicas, move load away, or lower the limits of the key that asks most. A longer queue "
        "(ALLM_QUEUE_LIMIT) only makes everybody wait.",
    ),
    Alert(
        "AllmQueueSlow",
        "histogram_quantile(0.95, sum by (le, model) (rate(allm_request_queue_seconds_bucket[5m]))) > 10",
        "10m",
        "warning",
        "One in twenty requests for {{ $labels.model }} waits longer than {{ $value | humanizeDuration }} for"
        " its turn.",
        "The batch is full all the time.",
        "Add replicas; on a GPU with memory to spare raise ALLM_MAX_SEQUENCES.",
    ),
    Alert(
        "AllmFirstTokenSlow",
        "histogram_quantile(0.95, sum by (le, model) "
        "(rate(gen_ai_server_time_to_first_token_seconds_bucket[5m]))) > 10",
        "10m",
        "warning",
        "One in twenty answers of {{ $labels.model }} takes {{ $value | humanizeDuration }} to begin.",
        "Prompts are long, the queue is, or the machine is busy with something else.",
        "If the queue is slow too, see AllmQueueSlow. Else look at the tokens of prompts and at the share "
        "that the prefix cache has; a machine that shares its cores or its GPU is the next suspect.",
    ),
    Alert(
        "AllmStuck",
        "sum by (model) (allm_requests_waiting) > 0 unless on (model) sum by (model) "
        "(rate(allm_engine_steps_total[5m])) > 0",
        "10m",
        "critical",
        "Requests for {{ $labels.model }} wait, and nothing is computed.",
        "The model does not finish loading, or its worker hangs where the watchdog does not see it.",
        "Look at the state of the model (`allm models list`) and in the service's log for its load. `allm "
        "models unload` ends the worker; the next request loads it anew.",
    ),
    Alert(
        "AllmWorkerDies",
        "sum by (model) (increase(allm_worker_deaths_total[15m])) >= 2",
        "0m",
        "critical",
        "The worker of {{ $labels.model }} has died {{ $value | humanize }} times within 15 minutes.",
        "Each time the requests that ran there ended with INTERNAL or TIMEOUT. Native code crashed, memory "
        "ran out, or the watchdog ended a worker that hung.",
        "The service's log says how it ended: SIGKILL without `worker stalled` before is the kernel's for "
        "want of memory, SIGSEGV a fault of the runtime. Lower ALLM_KV_TOKENS or the batch for the first, "
        "take the model away for the second.",
    ),
    Alert(
        "AllmLoadFails",
        "sum by (model, code) (increase(allm_model_load_failures_total[15m])) >= 2",
        "0m",
        "critical",
        "{{ $labels.model }} cannot be loaded: {{ $labels.code }}.",
        "Its requests end with that code, and after three failures at once.",
        "`allm models list` shows the reason. OUT_OF_MEMORY: docs/residency.md; MODEL_INVALID: the files; "
        "TIMEOUT: the disk, or ALLM_LOAD_SECONDS. `allm models load` tries again at once.",
    ),
    Alert(
        "AllmMemoryShort",
        "max by (instance, place) (allm_memory_pressure) == 1",
        "5m",
        "warning",
        "{{ $labels.place }} of {{ $labels.instance }} has been above the memory threshold for 5 minutes.",
        "Everything that is loaded is in use, so nothing can be unloaded; no further model is let in.",
        "See who takes the memory (dashboard, Memory). Unload a model or take its requests elsewhere; if it "
        "is not allm's, find the other process.",
    ),
    Alert(
        "AllmMemoryOverrun",
        "sum by (model) (increase(allm_memory_overruns_total[1h])) > 0",
        "0m",
        "warning",
        "{{ $labels.model }} takes over 15% more memory than was reserved for it.",
        "Admission reckoned too little: the next model may be let in where there is no room.",
        "Leave more room for now (ALLM_MEMORY_THRESHOLD), and report the model: its need is reckoned in "
        "services/*/memory_estimate.py.",
    ),
    Alert(
        "AllmModelsPushEachOtherOut",
        'sum by (instance) (increase(allm_model_evictions_total{reason!="idle"}[30m])) > 10',
        "10m",
        "warning",
        "Models of {{ $labels.instance }} were unloaded {{ $value | humanize }} times within 30 minutes to make room.",
        "More models are asked for than fit: most requests wait for a load.",
        "Give models to other replicas, pin the important ones (`allm models load`), or add memory.",
    ),
    Alert(
        "AllmCacheTooSmall",
        "sum by (model) (rate(allm_requests_preempted_total[10m])) > 0.1",
        "10m",
        "warning",
        "Requests for {{ $labels.model }} start over {{ $value | humanize }} times a second for want of cells.",
        "Requests outgrow the key-value cache; they are computed twice, and everybody is slower.",
        "Raise ALLM_KV_TOKENS if memory allows, else lower ALLM_MAX_SEQUENCES.",
    ),
    Alert(
        "AllmModelsFileWrong",
        "max by (instance) (allm_models_file_problems) > 0",
        "5m",
        "warning",
        "{{ $value }} entries of the models file are not applied.",
        "What ALLM_MODELS_FILE declares and what is served differ.",
        "The catalog's log names each entry and what is wrong with it.",
    ),
    Alert(
        "AllmAuthorizerWithoutCatalog",
        "max by (instance) (allm_authorizer_catalog_up) == 0",
        "5m",
        "warning",
        "The authorizer {{ $labels.instance }} hears nothing of the catalog.",
        "Keys that are known go on working; new ones do not, and revoked ones still do.",
        "Bring the catalog back, or let the authorizer reach it (ALLM_CATALOG).",
    ),
)


def rules() -> dict[str, Any]:
    """Returns the rules as the content of a Prometheus rules file."""
    return {"groups": [{"name": "allm", "rules": [alert.as_rule() for alert in ALERTS]}]}
