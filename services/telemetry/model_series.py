"""Series of metrics that belong to a model: a sum over its workers, and an end when the model is gone."""

from __future__ import annotations

from collections.abc import Collection

from prometheus_client import Counter, Gauge, Histogram

from services.telemetry import metrics

SWEEP_SECONDS = 10.0  # between two looks for series of models that are gone
_MODEL = "model"
Metric = Counter | Gauge | Histogram

_parts: dict[tuple[Gauge, str], dict[ModelPart, float]] = {}


class ModelPart:
    """What one of a model's workers, or what waits for one, adds to the model's gauges.

    Two generations of a model may run side by side for a while: what is told is their sum.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._closed = False
        self._told: dict[Gauge, float] = {}

    def set(self, gauge: Gauge, value: float) -> None:
        """Tells this part's value. Nothing happens after `close`."""
        if self._closed or self._told.get(gauge) == value:
            return
        self._told[gauge] = value
        _parts.setdefault((gauge, self._model), {})[self] = value
        self._sum(gauge)

    def close(self) -> None:
        """Takes back what it has told; safe to repeat."""
        self._closed = True
        for gauge in self._told:
            _parts[gauge, self._model].pop(self, None)
            self._sum(gauge)
        self._told.clear()

    def _sum(self, gauge: Gauge) -> None:
        parts = _parts[gauge, self._model]
        gauge.labels(self._model).set(sum(parts.values()))
        if not parts:
            del _parts[gauge, self._model]


def model_metrics() -> list[Metric]:
    """Every metric of this process's own that has the label `model`."""
    return [each for each in vars(metrics).values() if isinstance(each, Metric) and _MODEL in each._labelnames]


def forget_others(known: Collection[str]) -> set[str]:
    """Ends the series of all models but those in `known`, and tells which models these were.

    A request that was still running when its model went may bring a series back: so this is done again and again.
    """
    gone = set()
    for metric in model_metrics():
        place = metric._labelnames.index(_MODEL)
        models = {labels[place] for labels in list(metric._metrics)}  # to collect them all would take milliseconds
        for model in models - {"", *known}:
            metric.remove_by_labels({_MODEL: model})
            gone.add(model)
    return gone
