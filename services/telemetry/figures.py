"""A replica's figures of work and memory: counters since its process started, current values, recent times and events.

The catalog computes rates from the differences between two reports, and percentiles from the latencies. The metrics
count the same for Prometheus: events without their times, latencies as histograms.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar, get_args

Kind = Literal["loaded", "unloaded", "evicted", "load_failed", "worker_died", "replica_lost"]
Counter = Literal[
    "requests", "generated_tokens", "prompt_tokens", "draft_tokens", "accepted_tokens", "audio_seconds", "images"
]
Times = Literal["first_output", "output_token", "request"]
KINDS: tuple[Kind, ...] = get_args(Kind)
COUNTERS: tuple[Counter, ...] = get_args(Counter)
TIMES: tuple[Times, ...] = get_args(Times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One measured time of one request."""

    kind: Times
    model: str  # id
    seconds: float
    age: float = 0.0  # seconds since it was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFigures:
    """Memory of one GPU; bytes."""

    id: str  # the same from every container
    name: str  # the worker's device name: `cuda:0`
    total: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFigures:
    """Memory of a machine or a container; bytes."""

    id: str  # equal for processes that share this memory
    name: str  # its host name
    total: int
    used: int
    threshold: float  # ALLM_MEMORY_THRESHOLD, 0 to 1
    devices: tuple[DeviceFigures, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of a model or of a replica."""

    at: float  # seconds since the epoch
    kind: Kind
    model: str = ""  # id; empty: it is about the whole replica
    replica: str = ""  # empty for the reporting replica itself
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """The figures of one model. The mapping omits what it does not measure."""

    running: int = 0  # requests that it computes
    waiting: int = 0  # requests that wait, for it to load or for a batch slot
    counters: Mapping[Counter, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures(ModelFigures):
    """All figures of a replica at one moment; those of ModelFigures are sums over its models."""

    began: int  # nanoseconds since the epoch; a new value means that all counters restarted
    uptime: float  # seconds since then, by a monotonic clock
    models: Mapping[str, ModelFigures] = field(default_factory=dict)  # by id
    latencies: tuple[tuple[int, Latency], ...] = ()  # with their numbers, ascending; so are the next
    events: tuple[tuple[int, Event], ...] = ()
    host: HostFigures | None = None


MOST_EVENTS = 64  # unreported events that are kept: the latest
MOST_LATENCIES = 4096  # unreported latencies that are kept: the latest
LATENCY_SECONDS = 60.0  # older latencies are not reported
T = TypeVar("T")


class Numbered(Generic[T]):
    """The latest entries, numbered from 1."""

    def __init__(self, most: int) -> None:
        self._number = 0
        self._entries: deque[tuple[int, T]] = deque(maxlen=most)

    def add(self, entry: T) -> None:
        """Appends an entry; drops the oldest beyond `most`."""
        self._number += 1
        self._entries.append((self._number, entry))

    def after(self, number: int) -> Iterator[tuple[int, T]]:
        """Yields the entries after number `number` with their numbers, oldest first."""
        first = self._number - len(self._entries) + 1
        return itertools.islice(self._entries, max(0, number + 1 - first), None)


class ModelEvents:
    """The latest events of models. `clock`: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._events: Numbered[Event] = Numbered(MOST_EVENTS)

    def record(self, kind: Kind, model: str, reason: str = "") -> None:
        """Records an event."""
        self._events.add(Event(at=self._clock(), kind=kind, model=model, reason=reason))

    def after(self, number: int) -> tuple[tuple[int, Event], ...]:
        """Returns the events after number `number`, oldest first."""
        return tuple(self._events.after(number))


class ModelLatencies:
    """The latest measured times of requests, as they were measured. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._latencies: Numbered[tuple[float, Times, str, float]] = Numbered(MOST_LATENCIES)

    def record(self, kind: Times, model: str, seconds: float) -> None:
        """Records a time of a request of this model."""
        self._latencies.add((self._clock(), kind, model, seconds))

    def after(self, number: int) -> tuple[tuple[int, Latency], ...]:
        """Returns those of the last minute after number `number`, oldest first."""
        now = self._clock()
        return tuple(
            (place, Latency(kind=kind, model=model, seconds=seconds, age=now - at))
            for place, (at, kind, model, seconds) in self._latencies.after(number)
            if now - at <= LATENCY_SECONDS
        )


EVENTS = ModelEvents()  # of this process, like the metrics; so is the next
LATENCIES = ModelLatencies()
