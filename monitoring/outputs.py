"""The generated files and their contents."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from monitoring.alerts import rules
from monitoring.dashboard import dashboard
from monitoring.pages import alerts_page, metrics_page

ROOT = Path(__file__).parents[1]
DASHBOARD = "monitoring/grafana/allm.json"
RULES = "monitoring/prometheus/rules.yaml"
COMMENT = "# Made by `python -m monitoring` from monitoring/alerts.py; a test holds it current.\n"


def outputs() -> dict[str, str]:
    """Returns the content of each file, by its path below ROOT."""
    return {
        DASHBOARD: json.dumps(dashboard(), indent=2) + "\n",
        RULES: COMMENT + yaml.safe_dump(rules(), sort_keys=False, width=110, allow_unicode=True),
        "docs/metrics.md": metrics_page(),
        "docs/alerts.md": alerts_page(),
    }
