"""A replica's figures of work and memory: counters since its process started, current values, and recent events.

The catalog computes rates and percentiles from the differences between two reports. The metrics count the same events
for Prometheus, but without their times.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Kind = Literal["loaded", "unloaded", "evicted", "load_failed", "worker_died", "replica_lost"]
Counter = Literal["generated_tokens", "prompt_tokens", "draft_tokens", "accepted_tokens", "audio_seconds", "images"]
Times = Literal["first_output", "output_token", "request"]
KINDS: tuple[Kind, ...] = get_args(Kind)
COUNTERS: tuple[Counter, ...] = get_args(Counter)
TIMES: tuple[Times, ...] = get_args(Times)


@dataclass(frozen=True, slots=True)
class Latencies:
    """A histogram of times. `bounds`: upper ends of the buckets in seconds, ascending; `counts` has one more."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]


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
class Figures:
    """All figures of a replica at one moment. Mappings omit what it does not measure."""

    began: int  # nanoseconds since the epoch; a new value means that all counters restarted
    uptime: float  # seconds since then, by a monotonic clock
    running: int = 0  # requests that models compute
    waiting: int = 0  # requests that wait, for their model to load or for a batch slot
    counters: Mapping[Counter, float] = field(default_factory=dict)
    times: Mapping[Times, Latencies] = field(default_factory=dict)
    host: HostFigures | None = None
    events: tuple[tuple[int, Event], ...] = ()  # with their numbers, ascending


MOST = 64  # unreported events that are kept: the latest


class ModelEvents:
    """The latest events, numbered from 1. `clock`: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._number = 0
        self._events: deque[tuple[int, Event]] = deque(maxlen=MOST)

    def record(self, kind: Kind, model: str, reason: str = "") -> None:
        """Records an event."""
        self._number += 1
        self._events.append((self._number, Event(at=self._clock(), kind=kind, model=model, reason=reason)))

    def after(self, number: int) -> tuple[tuple[int, Event], ...]:
        """Returns the events after number `number`, oldest first."""
        return tuple(entry for entry in self._events if entry[0] > number)


EVENTS = ModelEvents()  # of this process, like the metrics
