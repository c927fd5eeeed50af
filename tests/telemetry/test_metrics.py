"""The Prometheus listener, and the metric names that dashboards rely on."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from services.telemetry import metrics
from services.telemetry.metrics import ModelPart, forget_others, model_metrics, serve_metrics
from tests.case import case

# The metrics that issue 2 promises, each with its model.
PROMISED = {
    "allm_requests_running": "gauge",
    "allm_requests_waiting": "gauge",
    "allm_prompt_tokens": "counter",
    "allm_generated_tokens": "counter",
    "allm_kv_cells_active": "gauge",
    "allm_kv_cells_cached": "gauge",
    "gen_ai_server_time_to_first_token_seconds": "histogram",
    "allm_errors": "counter",
}


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        return response.read().decode()


def test_counters_can_be_scraped_until_the_stop() -> None:
    metrics.GENERATED_TOKENS.labels("test-scrape").inc(3)
    port, stop = serve_metrics("127.0.0.1", 0)
    try:
        assert port > 0
        assert 'allm_generated_tokens_total{model="test-scrape"} 3.0' in scrape(port)
    finally:
        stop()
    with pytest.raises(urllib.error.URLError):
        scrape(port)
    socket.create_server(("127.0.0.1", port)).close()  # the port is free again


def test_dashboard_metrics_exist_with_the_label_model() -> None:
    for name, kind in PROMISED.items():
        with case(name=name, kind=kind):
            metrics.RUNNING.labels("test-names").set(1)
            port, stop = serve_metrics("127.0.0.1", 0)
            try:
                families = {family.name: family for family in text_string_to_metric_families(scrape(port))}
            finally:
                stop()
            assert families[name].type == kind
            ours = [metric for metric in vars(metrics).values() if getattr(metric, "_name", None) == name]
            assert len(ours) == 1
            assert "model" in ours[0]._labelnames


def test_used_port_is_reported_with_the_setting_names() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"ALLM_METRICS_HOST=127.0.0.1, ALLM_METRICS_PORT={port}: .*in use"):
            serve_metrics("127.0.0.1", port)


def test_times_are_kept_in_buckets_from_milliseconds_to_minutes() -> None:
    bounds = metrics.FIRST_TOKEN._kwargs["buckets"]
    assert bounds[0] <= 0.01
    assert bounds[-1] >= 300
    assert list(bounds) == sorted(bounds)


def value(name: str, model: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"model": model, **labels})


def test_figures_of_several_workers_are_summed() -> None:
    old, new = ModelPart("summed"), ModelPart("summed")
    old.set(metrics.RUNNING, 3)
    new.set(metrics.RUNNING, 1)
    assert value("allm_requests_running", "summed") == 4
    old.set(metrics.RUNNING, 2)
    assert value("allm_requests_running", "summed") == 3
    old.close()
    assert value("allm_requests_running", "summed") == 1
    new.close()
    assert value("allm_requests_running", "summed") == 0


def test_an_ended_worker_has_no_figures() -> None:
    part = ModelPart("ended")
    part.set(metrics.RUNNING, 3)
    part.close()
    part.set(metrics.RUNNING, 5)
    part.close()
    assert value("allm_requests_running", "ended") == 0


def test_all_series_of_a_model_that_is_gone_end_and_others_stay() -> None:
    for model in ("gone", "here"):
        metrics.REQUESTS.labels("R.r", model).inc()
        metrics.ERRORS.labels("R.r", "INTERNAL", model).inc()
        metrics.SERVER_DURATION.labels(*metrics.gen_ai(model, "chat"), "").observe(1)
        metrics.RUNNING.labels(model).set(1)
    metrics.REQUESTS.labels("R.r", "").inc()
    assert "gone" in forget_others({"here"})
    left = {
        sample.labels["model"] for metric in model_metrics() for family in metric.collect() for sample in family.samples
    }
    assert left <= {"here", ""}
    assert value("allm_requests_total", "here", rpc="R.r") == 1
    assert value("allm_requests_total", "", rpc="R.r")
    assert forget_others({"here"}) == set()


def test_a_request_that_ends_after_its_model_leaves_no_wrong_sum() -> None:
    part = ModelPart("late")
    part.set(metrics.RUNNING, 2)
    forget_others(())
    assert value("allm_requests_running", "late") is None
    part.set(metrics.RUNNING, 1)
    assert value("allm_requests_running", "late") == 1
    part.close()
    assert value("allm_requests_running", "late") == 0
    assert forget_others(()) == {"late"}
