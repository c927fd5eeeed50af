"""A replica's work and memory figures, read from its own metrics and its monitor's last snapshot."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from services.models.descriptor import Modality
from services.residency.memory.readings import Snapshot
from services.telemetry import figures, metrics
from services.telemetry.figures import EVENTS, DeviceFigures, Figures, HostFigures, Latencies, ModelEvents

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_COUNTERS: dict[figures.Counter, Counter] = {
    "generated_tokens": metrics.GENERATED_TOKENS,
    "prompt_tokens": metrics.PROMPT_TOKENS,
    "audio_seconds": metrics.AUDIO_SECONDS,
    "images": metrics.IMAGES,
}
_FIRST: dict[Modality, Histogram] = {
    "text": metrics.FIRST_TOKEN,
    "audio": metrics.FIRST_SEGMENT,
    "image": metrics.FIRST_IMAGE,
}


def total(metric: Counter | Gauge) -> float | None:
    """Returns the sum of all series; None if there is none yet. `collect` would take much longer."""
    series: list[Any] = list(metric._metrics.values())
    return sum(each._value.get() for each in series) if series else None


def buckets(metric: Histogram, **labels: str) -> tuple[tuple[float, ...], tuple[int, ...]] | None:
    """Returns the buckets' upper bounds without the last, and their counts, over all series with these labels.

    None if no such series exists yet.
    """
    places = [(metric._labelnames.index(name), value) for name, value in labels.items()]
    series: list[Any] = [
        child
        for values, child in list(metric._metrics.items())
        if all(values[place] == value for place, value in places)
    ]
    if not series:
        return None
    counts = zip(*([bucket.get() for bucket in child._buckets] for child in series), strict=True)
    return tuple(metric._upper_bounds[:-1]), tuple(int(sum(of_all)) for of_all in counts)


class FigureReader:
    """The reader of a service's figures. `modality`: the service's modality."""

    def __init__(
        self,
        modality: Modality,
        snapshot: Callable[[], Snapshot],
        threshold: float,
        events: ModelEvents = EVENTS,
        boot: Path = _BOOT,
    ) -> None:
        """`snapshot`: returns the last reading of memory; `threshold`: ResidencySettings.threshold; `boot`: a file that
        is the same in all containers of a machine, and different on every machine.
        """
        self._first = _FIRST[modality]
        self._snapshot = snapshot
        self._threshold = threshold
        self._events = events
        self._began = time.time_ns()
        self._clock = time.monotonic()
        self._name = socket.gethostname()
        self._machine = boot.read_text().strip() if boot.exists() else self._name

    def read(self, after: int = 0) -> Figures:
        """Returns all current figures, and the events after number `after`."""
        counters = {name: value for name, metric in _COUNTERS.items() if (value := total(metric)) is not None}
        times: dict[figures.Times, tuple[tuple[float, ...], tuple[int, ...]] | None] = {
            "first_output": buckets(self._first),
            "output_token": buckets(metrics.PER_TOKEN),
            "request": buckets(metrics.SERVER_DURATION, error_type=""),
        }
        return Figures(
            began=self._began,
            uptime=time.monotonic() - self._clock,
            running=int(total(metrics.RUNNING) or 0),
            waiting=int(total(metrics.WAITING) or 0),
            counters=counters,
            times={name: Latencies(*found) for name, found in times.items() if found},
            host=self._host(),
            events=self._events.after(after),
        )

    def _host(self) -> HostFigures:
        seen = self._snapshot()
        return HostFigures(
            id=f"{self._machine}/{seen.host.pool}",
            name=self._name,
            total=seen.host.total,
            used=seen.host.used,
            threshold=self._threshold,
            devices=tuple(
                DeviceFigures(id=f"{self._machine}/{each.pool}", name=each.name, total=each.total, used=each.used)
                for each in seen.devices
            ),
        )
