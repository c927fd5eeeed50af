"""The state of all live replicas together, aggregated from their reports, with rates and percentiles of one minute.

Rates come from the increase of counters between two reports. Percentiles are measured times themselves, never
interpolated: one of a few requests is the time of one of them.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from services.models.descriptor import MODALITIES, Modality
from services.telemetry import figures
from services.telemetry.figures import (
    COUNTERS,
    TIMES,
    DeviceFigures,
    Event,
    Figures,
    HostFigures,
    Latency,
    ModelFigures,
)

WINDOW = 60.0  # seconds
BIN = 2.0  # seconds that share one bin, so memory does not grow with the number of replicas
MOST_TIMES = 1000  # of one kind in a window: the latest
RATE_SECONDS = 4.0  # window of a rate: two reports
POINT_SECONDS = 0.5  # between two points: a closer one replaces the last
SHOWN = 12  # characters of a GPU's id that distinguish it from another of the same name
MAX_EVENTS = 256  # per sample; if there are more, the latest are kept
OLDEST_EVENT = 900.0  # seconds; older events, from while the catalog was down, are dropped
WHOLE = ""  # in place of a model's id: all models together
# The other counters grow in large steps.
_STEADY: tuple[figures.Counter, ...] = ("generated_tokens", "prompt_tokens", "draft_tokens", "accepted_tokens")


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles in seconds, and the number of measured values."""

    p50: float
    p95: float
    p99: float
    count: int


def percentiles(values: Collection[float]) -> Percentiles | None:
    """Returns the percentiles by nearest rank, each one of the values; None without values."""
    if not values:
        return None
    ordered, count = sorted(values), len(values)
    p50, p95, p99 = (ordered[-(-percent * count // 100) - 1] for percent in (50, 95, 99))
    return Percentiles(p50, p95, p99, count)


def gains(before: ModelFigures | None, now: ModelFigures) -> dict[figures.Counter, float]:
    """Returns the counters' increase from `before` to `now`; all of `now` where `before` is None.

    A counter that has decreased adds nothing: the series of a deleted model end.
    """
    old = before.counters if before else {}
    return {name: max(0.0, value - old.get(name, 0.0)) for name, value in now.counters.items()}


class RollingWindow:
    """The gains and latencies within the last minute. All times are seconds of one monotonic clock."""

    def __init__(self, began: float) -> None:
        self.began = began
        self._bins: deque[tuple[float, Counter[figures.Counter]]] = deque()
        self._times: dict[figures.Times, deque[tuple[float, float]]] = {}

    def add(self, at: float, gain: Mapping[figures.Counter, float]) -> None:
        """Adds a gain at that time."""
        if not any(gain.values()):
            return
        if not self._bins or at - self._bins[-1][0] >= BIN:
            self._bins.append((at, Counter()))
        self._bins[-1][1].update(gain)
        self._forget(at)

    def measured(self, at: float, latency: Latency) -> None:
        """Adds a latency that was reported at that time."""
        times = self._times.setdefault(latency.kind, deque(maxlen=MOST_TIMES))
        times.append((at - latency.age, latency.seconds))

    def rate(self, counter: figures.Counter, at: float) -> float:
        """Returns the counter's rate per second."""
        self._forget(at)
        return sum(gain[counter] for _, gain in self._bins) / max(BIN, min(WINDOW, at - self.began))

    def percentiles(self, at: float) -> dict[figures.Times, Percentiles]:
        """Returns the percentiles of each kind of time that was measured."""
        recent = {name: [took for ended, took in self._times.get(name, ()) if at - ended <= WINDOW] for name in TIMES}
        return {name: found for name, times in recent.items() if (found := percentiles(times))}

    def empty(self, at: float) -> bool:
        """Returns whether nothing happened within the last minute."""
        self._forget(at)
        return not self._bins and not self.percentiles(at)

    def _forget(self, at: float) -> None:
        while self._bins and at - self._bins[0][0] > WINDOW:
            self._bins.popleft()


class Speed:
    """The growth rate of counters of a replica over the last few seconds. `uptime`: the replica's own seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, dict[figures.Counter, float]]] = deque()

    def add(self, uptime: float, gain: Mapping[figures.Counter, float]) -> None:
        """Adds the gain since the previous point."""
        before = self._points[-1][1] if self._points else {}
        totals = {name: before.get(name, 0.0) + value for name, value in gain.items()}
        if len(self._points) > 1 and uptime - self._points[-2][0] < POINT_SECONDS:
            self._points.pop()
        self._points.append((uptime, totals))
        while len(self._points) > 2 and self._points[1][0] <= uptime - RATE_SECONDS:
            self._points.popleft()

    def rate(self, counter: figures.Counter) -> float | None:
        """Returns the rate per second; None if the replica lacks that counter or has not reported twice."""
        if len(self._points) < 2 or counter not in self._points[-1][1]:
            return None
        (began, first), (ended, last) = self._points[0], self._points[-1]
        seconds = ended - began
        return (last[counter] - first.get(counter, 0.0)) / seconds if seconds >= POINT_SECONDS else None


def merged(seen: Iterable[HostFigures]) -> tuple[HostFigures, ...]:
    """Returns the hosts by name, each with its devices by name. `seen` is in order of report: the latest report wins.

    If thresholds differ, the lowest counts. A device that several containers of a machine see belongs to the first of
    them. Two devices of a host that share a name, because their services see different devices, get distinct names.
    """
    hosts: dict[str, HostFigures] = {}
    devices: dict[str, dict[str, DeviceFigures]] = {}
    newest: dict[str, DeviceFigures] = {}
    for host in seen:
        known = hosts.get(host.id)
        threshold = min(host.threshold, known.threshold) if known else host.threshold
        name = min(host.name, known.name) if known else host.name  # each container of a machine has its own name
        hosts[host.id] = replace(host, threshold=threshold, name=name)
        devices.setdefault(host.id, {}).update((each.id, each) for each in host.devices)
        newest.update((each.id, each) for each in host.devices)
    found: list[HostFigures] = []
    listed: set[str] = set()
    for host in sorted(hosts.values(), key=lambda each: (each.name, each.id)):
        own = [newest[each] for each in devices[host.id] if each not in listed]
        listed.update(each.id for each in own)
        found.append(replace(host, devices=_with_distinct_names(own)))
    return tuple(found)


def _with_distinct_names(devices: list[DeviceFigures]) -> tuple[DeviceFigures, ...]:
    names = Counter(each.name for each in devices)
    named = [
        replace(each, name=f"{each.name} ({each.id.rpartition('/')[2][:SHOWN]})") if names[each.name] > 1 else each
        for each in devices
    ]
    return tuple(sorted(named, key=lambda each: (each.name, each.id)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of one model on all replicas together. The mappings leave out anything that was not measured."""

    running: int
    waiting: int
    rates: Mapping[figures.Counter, float]  # per second
    times: Mapping[figures.Times, Percentiles]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic(Load):
    """The load of a modality's replicas together."""

    modality: Modality
    replicas: int
    models: Mapping[str, Load] = field(default_factory=dict)  # by id: those with a request within the last minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state of all hosts and replicas at one moment."""

    at: float  # seconds since the epoch
    hosts: tuple[HostFigures, ...]
    traffic: tuple[Traffic, ...]
    events: tuple[Event, ...]  # since the previous sample, oldest first

    @property
    def size(self) -> int:
        """The number of entries, by which the history of samples is bounded."""
        parts = sum(len(host.devices) for host in self.hosts) + sum(len(each.models) for each in self.traffic)
        return len(self.hosts) + len(self.traffic) + len(self.events) + parts


@dataclass(slots=True)
class _Report:
    """The last report of one replica."""

    modality: Modality
    figures: Figures
    received: float  # by `Machine`'s clock
    speeds: dict[str, Speed] = field(default_factory=dict)  # by model; WHOLE: of the replica
    event: int = 0  # number of its last event; so is the next
    latency: int = 0

    def of(self, model: str) -> ModelFigures | None:
        """Returns a model's figures, or those of the replica for WHOLE; None if it has none."""
        return self.figures.models.get(model) if model else self.figures


class Machine:
    """Collects figures and makes samples of them. `clock`: monotonic seconds; `now`: seconds since the epoch.

    Its memory is bounded by the number of live replicas, which `ReplicaStatus` bounds, and of their models.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._now = now
        self._reports: dict[str, _Report] = {}  # by replica, in order of the last report
        self._windows: dict[Modality, dict[str, RollingWindow]] = {}  # by model; WHOLE: of all models
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)

    def take(self, replica: str, modality: Modality, reported: Figures) -> None:
        """Takes in a live replica's report.

        The first report has no predecessor to compare with, so the counters count from then on. If the process has
        started since the last report, its counters count in full. Latencies count in any case, once.
        """
        at, known = self._clock(), self._reports.pop(replica, None)
        if known and known.modality != modality:
            known = None
        before: Figures | None = reported
        new = _Report(modality, reported, at)
        if known and known.figures.began == reported.began:
            before, new.speeds, new.event, new.latency = known.figures, known.speeds, known.event, known.latency
        elif known and reported.uptime <= at - known.received:
            before = None
        self._count(new, before)
        for number, event in reported.events:
            if number > new.event and event.at > self._now() - OLDEST_EVENT:
                self._events.append(replace(event, replica=replica))
            new.event = max(new.event, number)
        for number, latency in reported.latencies:
            if number > new.latency:
                self._window(modality, WHOLE, at).measured(at, latency)
                self._window(modality, latency.model, at).measured(at, latency)
            new.latency = max(new.latency, number)
        self._reports[replica] = new

    def _count(self, new: _Report, before: Figures | None) -> None:
        """Adds what the counters gained since `before`, of the replica and of each of its models."""
        at, reported = new.received, new.figures
        gained = {WHOLE: gains(before, reported)}
        gained |= {
            model: gains(before.models.get(model) if before else None, found)
            for model, found in reported.models.items()
        }
        new.speeds = {model: new.speeds.get(model, Speed()) for model in gained}
        for model, gain in gained.items():
            new.speeds[model].add(reported.uptime, gain)
            if model == WHOLE or any(gain.values()):
                self._window(new.modality, model, at).add(at, gain)

    def _window(self, modality: Modality, model: str, at: float) -> RollingWindow:
        """Returns the window of a model, which began with that of its modality."""
        windows = self._windows.setdefault(modality, {WHOLE: RollingWindow(at)})
        return windows.setdefault(model, RollingWindow(windows[WHOLE].began))

    def drop(self, replica: str, *, lost: bool = False) -> None:
        """Stops counting a replica. `lost`: it went silent without signing off."""
        self._reports.pop(replica, None)
        if lost:
            self._events.append(Event(at=self._now(), kind="replica_lost", replica=replica))

    def host_of(self, replica: str) -> HostFigures | None:
        """Returns the memory that a live replica sees; None if it has not reported it."""
        report = self._reports.get(replica)
        return report.figures.host if report else None

    def sample(self) -> Sample:
        """Returns a sample of the current state. Each event appears in one sample only."""
        events = tuple(sorted(self._events, key=lambda event: event.at))
        self._events.clear()
        return Sample(
            at=self._now(),
            hosts=merged(report.figures.host for report in self._reports.values() if report.figures.host),
            traffic=tuple(traffic for modality in MODALITIES if (traffic := self._traffic(modality))),
            events=events,
        )

    def _traffic(self, modality: Modality) -> Traffic | None:
        live = [report for report in self._reports.values() if report.modality == modality]
        if not live:
            return None
        at, windows = self._clock(), self._windows[modality]
        for report in live:
            for model, found in report.figures.models.items():
                if found.running or found.waiting:
                    self._window(modality, model, at)
        loads = {model: _load(live, model, window, at) for model, window in windows.items()}
        whole = loads.pop(WHOLE)
        for model in [model for model, load in loads.items() if not load.running + load.waiting]:
            if not loads[model].times and windows[model].empty(at):
                del windows[model], loads[model]
        return Traffic(
            modality=modality,
            replicas=len(live),
            running=whole.running,
            waiting=whole.waiting,
            rates=whole.rates,
            times=whole.times,
            models=dict(sorted(loads.items())),
        )


def _load(live: Collection[_Report], model: str, window: RollingWindow, at: float) -> Load:
    """Returns the load of a model on all its live replicas, or of all models for WHOLE."""
    found = [part for report in live if (part := report.of(model))]
    rates: dict[figures.Counter, float] = {}
    for counter in COUNTERS:
        if counter in _STEADY:
            speeds = [report.speeds[model] for report in live if model in report.speeds]
            known = [rate for speed in speeds if (rate := speed.rate(counter)) is not None]
            if known:
                rates[counter] = sum(known)
        elif any(counter in part.counters for part in found):
            rates[counter] = window.rate(counter, at)
    return Load(
        running=sum(part.running for part in found),
        waiting=sum(part.waiting for part in found),
        rates=rates,
        times=window.percentiles(at),
    )
