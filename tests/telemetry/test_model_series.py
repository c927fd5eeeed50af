"""Metric series of models: sums over workers, removed with the model."""

from __future__ import annotations

from prometheus_client import REGISTRY

from services.telemetry import metrics
from services.telemetry.model_series import ModelPart, forget_others, model_metrics


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


def test_a_worker_that_has_ended_tells_nothing_any_more() -> None:
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
