"""The cluster gets the same rules and dashboard as in monitoring/."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.deploy.renderings import rendering

MONITORING = Path(__file__).parents[2] / "monitoring"


@pytest.mark.parametrize("name", ["chart: monitoring", "kustomize: monitoring"])
def test_rules_and_dashboard_are_those_of_monitoring(name: str) -> None:
    objects = rendering(name)
    (rule,) = [found for found in objects if found["kind"] == "PrometheusRule"]
    assert rule["spec"] == yaml.safe_load((MONITORING / "prometheus/rules.yaml").read_text())
    (dashboard,) = [found for found in objects if found["metadata"]["name"] == "allm-dashboard"]
    assert json.loads(dashboard["data"]["allm.json"]) == json.loads((MONITORING / "grafana/allm.json").read_text())


def test_prometheus_picks_them_by_labels_of_the_operators_choice() -> None:
    for found in rendering("chart: model-images"):
        if found["kind"] in ("ServiceMonitor", "PrometheusRule"):
            assert found["metadata"]["labels"]["release"] == "prometheus"


def test_jobs_have_the_names_that_rules_and_dashboard_look_for() -> None:
    (monitor,) = [found for found in rendering("chart: monitoring") if found["kind"] == "ServiceMonitor"]
    for endpoint in monitor["spec"]["endpoints"]:
        (relabeling,) = endpoint["relabelings"]
        assert (relabeling["targetLabel"], relabeling["replacement"]) == ("job", "allm-$1")
    assert 'job=~"allm.*"' in (MONITORING / "prometheus/rules.yaml").read_text()
