"""PromQL expressions shared by several panels."""

from __future__ import annotations

from monitoring.panel import Query

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
