"""The metrics that allm's processes export, read from their declarations."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Counter, Gauge, Histogram

# The modules that declare metrics, and the processes that export them.
MODULES = {
    "services.telemetry.metrics": "text, audio, image (catalog and authorizer export the ones common to all processes)",
    "services.catalog.metrics": "catalog",
    "services.authorizer.metrics": "authorizer",
}
_UNITS = {"seconds": "seconds", "bytes": "bytes", "tokens": "tokens", "usage": "tokens", "ratio": "0 to 1"}
_CELLS = "allm_kv_cells"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, as Prometheus sees it."""

    name: str  # of the family, with `_total` for a counter
    kind: str  # counter, gauge or histogram
    labels: tuple[str, ...]
    meaning: str
    module: str  # the module that declares it

    @property
    def unit(self) -> str:
        """The unit of its values."""
        if self.name.startswith(_CELLS):
            return "cells"
        return _UNITS.get(self.name.removesuffix("_total").rpartition("_")[2], "count")

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its samples."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)


def all_metrics() -> list[Metric]:
    """Returns every metric, in order of declaration."""
    return [metric for module in MODULES for metric in _declared(module)]


def _declared(module: str) -> Iterator[Metric]:
    for value in vars(importlib.import_module(module)).values():
        if not isinstance(value, Counter | Gauge | Histogram):
            continue
        suffix = "_total" if isinstance(value, Counter) else ""
        yield Metric(f"{value._name}{suffix}", value._type, tuple(value._labelnames), value._documentation, module)
