"""The generated files are up to date, and name only existing metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from opentelemetry.semconv._incubating.attributes import error_attributes, gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

from monitoring.alerts import ALERTS
from monitoring.dashboard import ROWS, dashboard
from monitoring.metric import Metric, all_metrics
from monitoring.outputs import ROOT, outputs
from monitoring.pages import ENVOY, LABELS
from monitoring.panel import WIDTH
from tests.case import case

METRICS = {metric.name: metric for metric in all_metrics()}
NAME = re.compile(r"\b(?:allm|gen_ai|envoy)_[a-z_]+")
LABELS_OF = re.compile(r"(?:by|on) \([^)]*\)|\{[^}]*\}|\"[^\"]*\"")
# Labels that Prometheus or Envoy add.
FOREIGN = {"instance", "job", "le", "envoy_http_conn_manager_prefix", "envoy_cluster_name", "envoy_response_code_class"}


def expressions() -> Iterator[tuple[str, str]]:
    """Yields title and expression of every panel and alert."""
    for panels in ROWS.values():
        for panel in panels:
            yield from ((panel.title, query.expression) for query in panel.queries)
    yield from ((alert.name, alert.expression) for alert in ALERTS)


def names(expression: str) -> set[str]:
    """Returns the series in an expression."""
    return set(NAME.findall(LABELS_OF.sub("", expression)))


@pytest.mark.parametrize("path", outputs())
def test_it_is_current(path: str) -> None:
    assert (ROOT / path).read_text() == outputs()[path], "run `python -m monitoring`"


def test_panels_and_alerts_ask_for_metrics_and_labels_that_there_are() -> None:
    for title, expression in list(expressions()):
        with case(title=title, expression=expression):
            series = {name: metric for metric in METRICS.values() for name in metric.series}
            asked = names(expression)
            assert asked or expression.count("up{"), f"{title}: the test sees no metric in {expression}"
            assert not asked - series.keys() - ENVOY.keys(), title
            labels = {label for name in asked if name in series for label in series[name].labels} | FOREIGN
            for group in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
                assert set(group.split(", ")) <= labels, title
            for selector in re.findall(r"\{([^}]*)\}", expression):
                assert set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", selector)) <= labels, title


def test_every_metric_is_shown_but_a_few() -> None:
    shown = {name for _, expression in expressions() for name in names(expression)}
    not_shown = {metric.name for metric in METRICS.values() if not shown & set(metric.series)}
    assert not_shown == {
        "allm_request_duration_seconds",  # of RPCs that only read and manage
        "allm_trace_spans_sent_total",
        "allm_trace_spans_dropped_total",
        "allm_tasks",
        "allm_models_registered",
        "allm_model_watchers",
        "allm_authorizer_check_seconds",
        "allm_authorizer_keys",
    }


def test_every_label_is_explained() -> None:
    assert {label for metric in METRICS.values() for label in metric.labels} == set(LABELS)


def test_no_metric_is_declared_twice() -> None:
    assert len(METRICS) == len(all_metrics())


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= WIDTH
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells, panel["title"]
        taken |= cells


@pytest.mark.parametrize("metric", [one for one in METRICS.values() if one.name.startswith("gen_ai")], ids=str)
def test_names_of_the_conventions_are_those_of_the_conventions(metric: Metric) -> None:
    published = {
        value.replace(".", "_")
        for source in (gen_ai_metrics, gen_ai_attributes, error_attributes)
        for value in vars(source).values()
        if isinstance(value, str)
    }
    assert metric.name.removesuffix("_seconds") in published
    assert set(metric.labels) - {"model"} <= published
    required = {"gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "model"}
    assert required <= set(metric.labels)
