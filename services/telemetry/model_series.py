"""Metric series of models: sums over a model's workers, and removal when the model is gone."""

from __future__ import annotations

from collections.abc import Collection

from prometheus_client import Counter, Gauge, Histogram

from services.telemetry import metrics

SWEEP_SECONDS = 10.0  # between two removals of series
_MODEL = "model"
Metric = Counter | Gauge | Histogram

_parts: dict[tuple[Gauge, str], dict[ModelPart, float]] = {}


class ModelPart:
    """The contribution of one worker of a model, or of requests that wait for one, to the model's gauges.

    Two generations of a model may run at the same time: the gauge is the sum of all parts.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._closed = False
        self._values: dict[Gauge, float] = {}

    def set(self, gauge: Gauge, value: float) -> None:
        """Sets this part's value. Does nothing after `close`."""
        if self._closed or self._values.get(gauge) == value:
            return
        self._values[gauge] = value
        _parts.setdefault((gauge, self._model), {})[self] = value
        self._sum(gauge)

    def close(self) -> None:
        """Withdraws all values; safe to repeat."""
        self._closed = True
        for gauge in self._values:
            _parts[gauge, self._model].pop(self, None)
            self._sum(gauge)
        self._values.clear()

    def _sum(self, gauge: Gauge) -> None:
        parts = _parts[gauge, self._model]
        gauge.labels(self._model).set(sum(parts.values()))
        if not parts:
            del _parts[gauge, self._model]


def model_metrics() -> list[Metric]:
    """Returns all of this process's metrics with the label `model`."""
    return [each for each in vars(metrics).values() if isinstance(each, Metric) and _MODEL in each._labelnames]


def forget_others(known: Collection[str]) -> set[str]:
    """Removes the series of all models but those in `known`; returns the removed models.

    A request that still runs when its model goes may recreate a series: call this periodically.
    """
    gone = set()
    for metric in model_metrics():
        place = metric._labelnames.index(_MODEL)
        models = {labels[place] for labels in list(metric._metrics)}  # `collect` would take milliseconds
        for model in models - {"", *known}:
            metric.remove_by_labels({_MODEL: model})
            gone.add(model)
    return gone
