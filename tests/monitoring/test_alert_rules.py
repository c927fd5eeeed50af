"""The alert rules, checked by promtool: they are valid, fire when they should, and only then."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitoring.alerts import ALERTS
from monitoring.outputs import ROOT, RULES
from tests.monitoring.alert_scenarios import SCENARIOS, Scenario, Series
from tests.monitoring.prometheus_server import PROMTOOL

BY_NAME = {alert.name: alert for alert in ALERTS}


def promtool(*arguments: str) -> str:
    """Runs promtool and returns its output."""
    done = subprocess.run(
        [PROMTOOL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def unit_test(series: Series, at: int, alert: str, expected: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns one test for `promtool test rules`."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": f"{at}m", "alertname": alert, "exp_alerts": expected}],
    }


def fires(scenario: Scenario) -> dict[str, Any]:
    """Returns the alert that Prometheus should report."""
    alert = BY_NAME[scenario.alert]
    annotations = {"summary": scenario.summary, "description": alert.action, "runbook_url": alert.anchor}
    return {"exp_labels": {"severity": alert.severity, **scenario.labels}, "exp_annotations": annotations}


def run(tmp_path: Path, tests: list[dict[str, Any]]) -> None:
    file = tmp_path / "tests.yaml"
    reported = {"rule_files": [str(ROOT / RULES)], "evaluation_interval": "1m", "tests": tests}
    file.write_text(yaml.safe_dump(reported))
    promtool("test", "rules", str(file))


def test_they_can_be_read() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", str(ROOT / RULES))


def test_every_alert_has_its_scenario() -> None:
    assert [scenario.alert for scenario in SCENARIOS] == [alert.name for alert in ALERTS]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.alert)
def test_an_alert_fires_and_explains_the_fault(scenario: Scenario, tmp_path: Path) -> None:
    run(tmp_path, [unit_test(scenario.firing, scenario.at, scenario.alert, [fires(scenario)])])


def test_similar_situations_do_not_fire_the_alert(tmp_path: Path) -> None:
    run(tmp_path, [unit_test(scenario.quiet, scenario.at, scenario.alert, []) for scenario in SCENARIOS])
