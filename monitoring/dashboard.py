"""The dashboard: rows of panels."""

from __future__ import annotations

from typing import Any

from monitoring.machine_panels import GATEWAY, MEMORY
from monitoring.panel import DATASOURCE, WIDTH, Panel
from monitoring.service_panels import AUDIO, IMAGE, OVERVIEW, TEXT

TITLE = "allm"
UID = "allm-overview"
ROWS: dict[str, tuple[Panel, ...]] = {
    "Overview": OVERVIEW,
    "Text": TEXT,
    "Audio": AUDIO,
    "Image": IMAGE,
    "Memory and models": MEMORY,
    "Gateway": GATEWAY,
}


def dashboard() -> dict[str, Any]:
    """Returns the dashboard in Grafana's JSON format, for a file or its API."""
    placed: list[dict[str, Any]] = []
    y = 0
    for row, panels in ROWS.items():
        placed.append(_row(row, len(placed) + 1, y))
        y += 1
        x = lowest = 0
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + lowest
                lowest = 0
            placed.append(panel.as_grafana(len(placed) + 1, x, y))
            x, lowest = x + panel.width, max(lowest, panel.height)
        y += lowest
    return {
        "title": TITLE,
        "uid": UID,
        "tags": ["allm", "inference"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "templating": {"list": _variables()},
        "panels": placed,
    }


def _row(title: str, number: int, y: int) -> dict[str, Any]:
    place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _variables() -> list[dict[str, Any]]:
    query = "label_values(allm_requests_total, model)"
    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1},
        {
            "name": "model",
            "label": "Model",
            "type": "query",
            "datasource": DATASOURCE,
            "query": {"query": query, "refId": "models"},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".+",
            "current": {"text": "All", "value": "$__all"},
        },
    ]
