"""Panels of the dashboard, and their conversion to Grafana's format."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

WIDTH = 24  # columns of Grafana's grid
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
THRESHOLD = "threshold"  # a query with this legend is drawn as a limit line


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression. `$model` is the dashboard variable, `$__rate_interval` covers a few scrapes."""

    expression: str
    legend: str
    must_have_data: bool = True  # whether data must exist after a text, an audio and an image request


@dataclass(frozen=True, slots=True)
class Panel:
    """A dashboard panel."""

    title: str
    unit: str  # Grafana's name for the unit
    queries: tuple[Query, ...]
    description: str  # one sentence that explains the panel
    kind: str = "timeseries"
    width: int = 8
    height: int = 8

    def as_grafana(self, number: int, x: int, y: int) -> dict[str, Any]:
        """Returns the panel at a position of the grid."""
        custom = {"fillOpacity": 10, "showPoints": "never", "lineWidth": 1} if self.kind == "timeseries" else {}
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "fieldConfig": {
                "defaults": {"unit": self.unit, "min": 0, "custom": custom},
                "overrides": [_line()] if any(query.legend.startswith(THRESHOLD) for query in self.queries) else [],
            },
            "options": _OPTIONS[self.kind],
            "targets": [
                {
                    "refId": letter,
                    "datasource": DATASOURCE,
                    "expr": query.expression,
                    "legendFormat": query.legend,
                    "range": True,
                }
                for letter, query in zip(string.ascii_uppercase, self.queries, strict=False)
            ],
        }


_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value"},
}


def _line() -> dict[str, Any]:
    """Draws a dashed red line without a filled area."""
    properties = {
        "color": {"mode": "fixed", "fixedColor": "red"},
        "custom.fillOpacity": 0,
        "custom.lineStyle": {"fill": "dash", "dash": [10, 10]},
    }
    return {
        "matcher": {"id": "byRegexp", "options": f"/^{THRESHOLD}/"},
        "properties": [{"id": name, "value": value} for name, value in properties.items()],
    }


MODEL = 'model=~"$model"'
WINDOW = "$__rate_interval"
SHARES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


def rate(counter: str, by: str, where: str = MODEL, legend: str = "", needed: bool = True) -> Query:
    """Returns a counter's rate per second."""
    return Query(f"sum by ({by}) (rate({counter}{{{where}}}[{WINDOW}]))", legend or f"{{{{{by}}}}}", needed)


def quantiles(histogram: str, where: str = MODEL, needed: bool = True) -> tuple[Query, ...]:
    """Returns the 50%, 95% and 99% quantiles of a histogram, by model."""
    return tuple(
        Query(
            f"histogram_quantile({share}, sum by (le, model) (rate({histogram}_bucket{{{where}}}[{WINDOW}])))",
            f"{{{{model}}}} {word}",
            needed,
        )
        for share, word in SHARES
    )


def mean(histogram: str) -> Query:
    """Returns the mean of a histogram's values, by model."""
    above = f"sum by (model) (rate({histogram}_sum{{{MODEL}}}[{WINDOW}]))"
    below = f"sum by (model) (rate({histogram}_count{{{MODEL}}}[{WINDOW}]))"
    return Query(f"{above} / ({below} > 0)", "{{model}}")


def total(gauge: str, legend: str = "{{model}}", by: str = "model", where: str = MODEL, needed: bool = True) -> Query:
    """Returns a gauge, summed over processes."""
    return Query(f"sum by ({by}) ({gauge}{{{where}}})", legend, needed)
