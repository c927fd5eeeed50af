"""The state of all live replicas together, aggregated from their reports, with rates and percentiles of one minute.

Rates and percentiles come from the increase of counters between two reports. As in Prometheus's histogram_quantile,
values are assumed to be evenly distributed within a bucket, the first bucket begins at 0, and a value above the last
finite bound counts as that bound.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from services.models.descriptor import MODALITIES, Modality
from services.telemetry import figures
from services.telemetry.figures import COUNTERS, TIMES, DeviceFigures, Event, Figures, HostFigures

Buckets = Mapping[float, int]  # upper bound in seconds, the last one infinite -> number of values in the bucket
WINDOW = 60.0  # seconds
BIN = 2.0  # seconds that share one bin, so memory does not grow with the number of replicas
RATE_SECONDS = 4.0  # window of a rate: two reports
POINT_SECONDS = 0.5  # between two points: a closer one replaces the last
SHOWN = 12  # characters of a GPU's id that distinguish it from another of the same name
MAX_EVENTS = 256  # per sample; if there are more, the latest are kept
OLDEST_EVENT = 900.0  # seconds; older events, from while the catalog was down, are dropped
# The other counters grow in large steps.
_STEADY: tuple[figures.Counter, ...] = ("generated_tokens", "prompt_tokens", "draft_tokens", "accepted_tokens")


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles in seconds, and the number of measured values."""

    p50: float
    p95: float
    p99: float
    count: int


def percentiles(buckets: Buckets) -> Percentiles | None:
    """Returns the percentiles; None if nothing was measured."""
    count = sum(buckets.values())
    if not count:
        return None
    p50, p95, p99 = (percentile(buckets, share) for share in (0.5, 0.95, 0.99))
    return Percentiles(p50, p95, p99, count)


def percentile(buckets: Buckets, share: float) -> float:
    """Returns the value that `share` (0 to 1) of the values do not exceed; 0 without values or finite bounds."""
    wanted = share * sum(buckets.values())
    below, low = 0, 0.0
    for high, count in sorted(buckets.items()):
        if count and below + count >= wanted:
            return low if math.isinf(high) else low + (high - low) * (wanted - below) / count
        below += count
        low = low if math.isinf(high) else high
    return low


@dataclass(slots=True)
class CounterDelta:
    """Sums of the counters, and counts per histogram bucket, keyed by the bucket's upper bound in seconds."""

    counters: dict[figures.Counter, float] = field(default_factory=dict)
    times: dict[figures.Times, Counter[float]] = field(default_factory=dict)

    def add(self, other: CounterDelta) -> None:
        """Adds another delta to this one."""
        for name, value in other.counters.items():
            self.counters[name] = self.counters.get(name, 0.0) + value
        for times, buckets in other.times.items():
            self.times.setdefault(times, Counter()).update(buckets)


def counter_delta(before: Figures | None, now: Figures) -> CounterDelta:
    """Returns the increase from `before` to `now`; all of `now` where `before` is None.

    A counter that has decreased adds nothing: the series of a deleted model end.
    """
    old = before.counters if before else {}
    found = CounterDelta({name: max(0.0, value - old.get(name, 0.0)) for name, value in now.counters.items()})
    for name, times in now.times.items():
        known = before.times.get(name) if before else None
        counts = known.counts if known and known.bounds == times.bounds else (0,) * len(times.counts)
        ends = (*times.bounds, math.inf)
        more = {end: new - was for end, new, was in zip(ends, times.counts, counts, strict=True) if new > was}
        if more:
            found.times[name] = Counter(more)
    return found


class RollingWindow:
    """The gains of a modality's replicas within the last minute. All times are seconds of one monotonic clock."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._bins: deque[tuple[float, CounterDelta]] = deque()

    def add(self, at: float, gain: CounterDelta) -> None:
        """Adds a gain at that time."""
        if not self._bins or at - self._bins[-1][0] >= BIN:
            self._bins.append((at, CounterDelta()))
        self._bins[-1][1].add(gain)
        self._forget(at)

    def rate(self, counter: figures.Counter, at: float) -> float:
        """Returns the counter's rate per second."""
        self._forget(at)
        whole = sum(gain.counters.get(counter, 0.0) for _, gain in self._bins)
        return whole / max(BIN, min(WINDOW, at - self._began))

    def percentiles(self, at: float) -> dict[figures.Times, Percentiles]:
        """Returns the percentiles of each kind of time that was measured."""
        self._forget(at)
        whole = CounterDelta()
        for _, gain in self._bins:
            whole.add(gain)
        return {name: found for name in TIMES if (found := percentiles(whole.times.get(name, {})))}

    def _forget(self, at: float) -> None:
        while self._bins and at - self._bins[0][0] > WINDOW:
            self._bins.popleft()


class Speed:
    """The growth rate of a replica's counters over the last few seconds. `uptime`: the replica's own seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, dict[figures.Counter, float]]] = deque()

    def add(self, uptime: float, gain: CounterDelta) -> None:
        """Adds the gain since the previous point."""
        before = self._points[-1][1] if self._points else {}
        totals = {name: before.get(name, 0.0) + value for name, value in gain.counters.items()}
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
class Traffic:
    """The load of a modality's replicas together. The mappings leave out anything that was not measured."""

    modality: Modality
    replicas: int
    running: int
    waiting: int
    rates: Mapping[figures.Counter, float]  # per second
    times: Mapping[figures.Times, Percentiles]


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
        devices = sum(len(host.devices) for host in self.hosts)
        return len(self.hosts) + devices + len(self.traffic) + len(self.events)


@dataclass(slots=True)
class _Report:
    """The last report of one replica."""

    modality: Modality
    figures: Figures
    received: float  # by `Machine`'s clock
    speed: Speed = field(default_factory=Speed)
    event: int = 0  # number of its last event


class Machine:
    """Collects figures and makes samples of them. `clock`: monotonic seconds; `now`: seconds since the epoch.

    Its memory is bounded by the number of live replicas, which `ReplicaStatus` bounds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._now = now
        self._reports: dict[str, _Report] = {}  # by replica, in order of the last report
        self._minutes: dict[Modality, RollingWindow] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)

    def take(self, replica: str, modality: Modality, reported: Figures) -> None:
        """Takes in a live replica's report.

        The first report has no predecessor to compare with, so the counters count from then on. If the process has
        started since the last report, its counters count in full.
        """
        at, known = self._clock(), self._reports.pop(replica, None)
        if known and known.modality != modality:
            known = None
        before: Figures | None = reported
        new = _Report(modality, reported, at)
        if known and known.figures.began == reported.began:
            before, new.speed, new.event = known.figures, known.speed, known.event
        elif known and reported.uptime <= at - known.received:
            before = None
        gain = counter_delta(before, reported)
        new.speed.add(reported.uptime, gain)
        self._minutes.setdefault(modality, RollingWindow(at)).add(at, gain)
        for number, event in reported.events:
            if number > new.event and event.at > self._now() - OLDEST_EVENT:
                self._events.append(replace(event, replica=replica))
            new.event = max(new.event, number)
        self._reports[replica] = new

    def drop(self, replica: str, *, lost: bool = False) -> None:
        """Stops counting a replica. `lost`: it went silent without signing off."""
        self._reports.pop(replica, None)
        if lost:
            self._events.append(Event(at=self._now(), kind="replica_lost", replica=replica))

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
        at, minute = self._clock(), self._minutes[modality]
        rates: dict[figures.Counter, float] = {}
        for counter in COUNTERS:
            if counter in _STEADY:
                speeds = [rate for report in live if (rate := report.speed.rate(counter)) is not None]
                if speeds:
                    rates[counter] = sum(speeds)
            elif any(counter in report.figures.counters for report in live):
                rates[counter] = minute.rate(counter, at)
        return Traffic(
            modality=modality,
            replicas=len(live),
            running=sum(report.figures.running for report in live),
            waiting=sum(report.figures.waiting for report in live),
            rates=rates,
            times=minute.percentiles(at),
        )
