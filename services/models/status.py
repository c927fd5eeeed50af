"""The status of a model, as services report it and the catalog aggregates it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

State = Literal["loaded", "ready", "verifying", "downloading", "pending", "failed", "unsupported"]
# Best first: a model's state is the best state of its replicas.
STATES: tuple[State, ...] = get_args(State)
SERVING: frozenset[State] = frozenset({"loaded", "ready"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStatus:
    """A newer generation that is being prepared, or has failed, while an older one serves."""

    generation: int
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStatus:
    """The memory of a loaded or loading model, in bytes."""

    loading: bool = False
    pinned: bool = False  # never evicted
    reserved: int = 0  # host and devices together
    host: int = 0  # last measured host memory of its worker
    requests: int = 0  # that use it now
    last_used: int = 0  # seconds since 1970
    expires: int = 0  # when it is unloaded if it stays idle, likewise; 0: not before memory is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalStatus:
    """The model's own files on a replica that serves an execution cache."""

    state: State
    reason: str = ""
    done_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One replica's status of one model."""

    state: State
    generation: int  # that `state` refers to
    reason: str = ""
    runtime: str = ""
    device: str = ""
    artifact: str = ""  # `org/name@revision` of the execution cache in use
    done_bytes: int = 0  # fetched, of the generation that is being prepared
    total_bytes: int = 0
    peak_memory: int = 0  # bytes; 0: not loaded
    next: NextStatus | None = None
    memory: MemoryStatus | None = None  # None: not in memory
    canonical: CanonicalStatus | None = None  # None: they serve themselves, are local, or are not kept

    @property
    def serving(self) -> bool:
        """True if requests for the model are answered."""
        return self.state in SERVING
