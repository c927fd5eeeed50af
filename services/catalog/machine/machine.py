"""The state of all live replicas together, aggregated from their reports."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from services.catalog.machine.counter_delta import gained
from services.catalog.machine.hosts import merged
from services.catalog.machine.percentiles import Percentiles
from services.catalog.machine.rolling_window import RollingWindow
from services.catalog.machine.speed import Speed
from services.models.descriptor import MODALITIES, Modality
from services.telemetry import figures
from services.telemetry.figures import COUNTERS, Event, Figures, HostFigures

MAX_EVENTS = 256  # per sample; if there are more, the latest are kept
OLDEST_EVENT = 900.0  # seconds; older events, from while the catalog was down, are dropped
_STEADY: tuple[figures.Counter, ...] = ("generated_tokens", "prompt_tokens")  # the other counters grow in large steps


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
class _Told:
    """The last report of one replica."""

    modality: Modality
    figures: Figures
    heard: float  # by `Machine`'s clock
    speed: Speed = field(default_factory=Speed)
    event: int = 0  # number of its last event


class Machine:
    """Collects figures and makes samples of them. `clock`: monotonic seconds; `now`: seconds since the epoch.

    Its memory is bounded by the number of live replicas, which `ReplicaStatus` bounds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._now = now
        self._told: dict[str, _Told] = {}  # by replica, in order of the last report
        self._minutes: dict[Modality, RollingWindow] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)

    def take(self, replica: str, modality: Modality, told: Figures) -> None:
        """Takes in a live replica's report.

        The first report has no predecessor to compare with, so the counters count from then on. If the process has
        started since the last report, its counters count in full.
        """
        at, known = self._clock(), self._told.pop(replica, None)
        if known and known.modality != modality:
            known = None
        before: Figures | None = told
        new = _Told(modality, told, at)
        if known and known.figures.began == told.began:
            before, new.speed, new.event = known.figures, known.speed, known.event
        elif known and told.uptime <= at - known.heard:
            before = None
        gain = gained(before, told)
        new.speed.add(told.uptime, gain)
        self._minutes.setdefault(modality, RollingWindow(at)).add(at, gain)
        for number, event in told.events:
            if number > new.event and event.at > self._now() - OLDEST_EVENT:
                self._events.append(replace(event, replica=replica))
            new.event = max(new.event, number)
        self._told[replica] = new

    def drop(self, replica: str, *, lost: bool = False) -> None:
        """Stops counting a replica. `lost`: it went silent without signing off."""
        self._told.pop(replica, None)
        if lost:
            self._events.append(Event(at=self._now(), kind="replica_lost", replica=replica))

    def sample(self) -> Sample:
        """Returns a sample of the current state. Each event appears in one sample only."""
        events = tuple(sorted(self._events, key=lambda event: event.at))
        self._events.clear()
        return Sample(
            at=self._now(),
            hosts=merged(told.figures.host for told in self._told.values() if told.figures.host),
            traffic=tuple(traffic for modality in MODALITIES if (traffic := self._traffic(modality))),
            events=events,
        )

    def _traffic(self, modality: Modality) -> Traffic | None:
        live = [told for told in self._told.values() if told.modality == modality]
        if not live:
            return None
        at, minute = self._clock(), self._minutes[modality]
        rates: dict[figures.Counter, float] = {}
        for counter in COUNTERS:
            if counter in _STEADY:
                speeds = [rate for told in live if (rate := told.speed.rate(counter)) is not None]
                if speeds:
                    rates[counter] = sum(speeds)
            elif any(counter in told.figures.counters for told in live):
                rates[counter] = minute.rate(counter, at)
        return Traffic(
            modality=modality,
            replicas=len(live),
            running=sum(told.figures.running for told in live),
            waiting=sum(told.figures.waiting for told in live),
            rates=rates,
            times=minute.percentiles(at),
        )
