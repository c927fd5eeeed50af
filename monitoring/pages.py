"""The generated documentation pages: every metric, and the response to every alert."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from monitoring.alerts import ALERTS
from monitoring.metric import MODULES, Metric, all_metrics

NOTE = "<!-- Made by `python -m monitoring`; a test holds it current. -->"
LABELS = {
    "model": "id of a registered model, as requests name it (its aliases never show); empty where a request named none "
    "that exists",
    "rpc": "servicer and method, such as `TextFacade.CreateChatCompletion`",
    "code": "one of the error codes of [errors.md](errors.md)",
    "reason": "why, in one word; the metric lists them",
    "gen_ai_operation_name": "`chat`, `text_completion`, `embeddings`; and, where the conventions have no word, "
    "`transcription`, `translation`, `image_generation`, `image_edit`, `image_variation`",
    "gen_ai_provider_name": "`allm`, always",
    "gen_ai_request_model": "as `model`",
    "gen_ai_token_type": "`input` or `output`",
    "error_type": "as `code`; empty where the request ended well",
    "kind": "which figure it is; the metric lists them",
    "place": "`host`, or a GPU",
    "device": "a GPU, such as `cuda:0`",
    "modality": "`text`, `audio` or `image`",
    "outcome": "`admitted`, or an error code",
}
_METRICS = """# Metrics

{note}

Every process tells Prometheus its metrics by HTTP: the services on `ALLM_METRICS_HOST`:`ALLM_METRICS_PORT` as
`/metrics`, the gateway on `ALLM_GATEWAY_METRICS_HOST`:`ALLM_GATEWAY_METRICS_PORT` as `/stats/prometheus`. `allm serve`
gives all but the first text service a free port, and lists them in `$ALLM_HOME/run.json`. A worker has no port of its
own: what it counts comes over with what it says to its service anyway.

This makes a file of targets for a Prometheus with `file_sd_configs` out of it:

```sh
jq '[.metrics | to_entries[] | {{targets: [.value | split("/")[2]],
     labels: {{job: ("allm-" + .key), __metrics_path__: ("/" + (.value | split("/")[3:] | join("/")))}}}}]' \\
   ~/.allm/run.json > allm.json
```

`monitoring/grafana/allm.json` is a dashboard to import or to provision, `monitoring/prometheus/rules.yaml` are the
alerts, which [alerts.md](alerts.md) explains. Both expect jobs whose names begin with `allm`.

## Names
* What [OpenTelemetry's conventions for generative AI](https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/)
  define bears their name and their attributes' names, with underscores for dots. Everything else is `allm_...`. Nothing
  is told under two names: a request that infers is in `gen_ai_server_request_duration_seconds`, any other in
  `allm_request_duration_seconds`. `gen_ai_client_token_usage` tells how long prompts and answers are, of requests that
  ended well; the counters of tokens grow while they are computed, also for answers that are given up.
* What belongs to a model has the label `model`, also where the conventions have `gen_ai_request_model`.
* Counters end in `_total` and begin anew with the process; times are seconds, sizes bytes.
* Two generations of a model that run side by side are one series, their sum.
* Only models that exist become labels. Ten seconds after a model was removed, and its last request has ended, all its
  series are gone, so the number of series is bounded by models times RPCs, codes and buckets.

## Labels
| label | values |
|---|---|
{labels}

## Metrics
{metrics}

## Envoy's own
The gateway shows what Envoy counts, and nothing else of its admin interface, which has no login and listens on a Unix
socket. The most useful of some hundred, by `envoy_http_conn_manager_prefix="edge"` or `envoy_cluster_name`:

| metric | meaning |
|---|---|
{envoy}

Of these the dashboard and the alerts make use. The conventions of Prometheus are not Envoy's: its counters lack
`_total`, and its times are milliseconds.

## For autoscaling
`sum by (model) (allm_requests_waiting)` is how many requests wait, also for a model that is still loading, and
`allm_requests_running` how many are computed. Both fall to 0 when a worker ends.
"""
ENVOY = {
    "envoy_http_downstream_rq_xx": "answers, by class of the HTTP status (`envoy_response_code_class`)",
    "envoy_http_downstream_rq_active": "requests that are open",
    "envoy_http_downstream_cx_active": "connections of clients",
    "envoy_http_downstream_cx_rx_bytes_total": "bytes from clients",
    "envoy_http_downstream_cx_tx_bytes_total": "bytes to clients",
    "envoy_cluster_membership_healthy": "replicas that answer health checks",
    "envoy_cluster_membership_total": "replicas that are known",
    "envoy_cluster_upstream_cx_none_healthy": "requests that came while no replica was healthy",
    "envoy_cluster_upstream_rq_retry": "requests that were tried on another replica",
    "envoy_cluster_upstream_cx_connect_fail": "connections to replicas that could not be made",
}
_ALERTS = """# Alerts

{note}

The rules are in `monitoring/prometheus/rules.yaml`. *critical*: users notice, look at once. *warning*: look within the
day.

{alerts}
"""


def metrics_page() -> str:
    """Returns the content of docs/metrics.md."""
    metrics = all_metrics()
    used = {label for metric in metrics for label in metric.labels}
    return _METRICS.format(
        note=NOTE,
        labels=_rows((f"`{label}`", meaning) for label, meaning in LABELS.items() if label in used),
        metrics="\n".join(_section(module, metrics) for module in MODULES).strip(),
        envoy=_rows((f"`{name}`", meaning) for name, meaning in ENVOY.items()),
    )


def alerts_page() -> str:
    """Returns the content of docs/alerts.md."""
    return _ALERTS.format(
        note=NOTE,
        alerts="\n".join(
            f"## {alert.name}\n*{alert.severity}*, after {alert.lasting}. {alert.meaning}\n\n"
            f"**What to do.** {alert.action}\n\n```promql\n{alert.expression}\n```\n"
            for alert in ALERTS
        ).strip(),
    )


def _section(module: str, metrics: Sequence[Metric]) -> str:
    head = f"### Told by: {MODULES[module]}\n| metric | type | unit | labels | meaning |\n|---|---|---|---|---|"
    rows = (
        (f"`{one.name}`", one.kind, one.unit, ", ".join(f"`{label}`" for label in one.labels) or "none", one.meaning)
        for one in metrics
        if one.module == module
    )
    return f"{head}\n{_rows(rows)}\n"


def _rows(rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
