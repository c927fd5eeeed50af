"""A replica's figures of work and memory: counters since its process started, and current values.

The catalog computes rates and percentiles from the differences between two reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Kind = Literal["loaded", "unloaded", "evicted", "load_failed", "worker_died", "replica_lost"]
Counter = Literal["generated_tokens", "prompt_tokens", "audio_seconds", "images"]
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
