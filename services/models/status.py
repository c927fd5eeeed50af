"""How far a model is, in the words that services report and the catalog sums up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

State = Literal["loaded", "ready", "verifying", "downloading", "pending", "failed", "unsupported"]
# Best first: of several replicas' states the first of these that any has is the model's.
STATES: tuple[State, ...] = get_args(State)
SERVING: frozenset[State] = frozenset({"loaded", "ready"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStatus:
    """A newer generation that is on its way, or has failed to come, while an older one serves."""

    generation: int
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStatus:
    """What a model takes that is in memory, or on its way there; bytes."""

    loading: bool = False
    pinned: bool = False  # stays whatever others need
    reserved: int = 0  # of the host and of devices together
    host: int = 0  # that its worker was last seen to take
    requests: int = 0  # that use it now
    last_used: int = 0  # seconds since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What one replica says of one model."""

    state: State
    generation: int  # that `state` is about
    reason: str = ""
    runtime: str = ""
    device: str = ""
    artifact: str = ""  # `org/name@revision` of the execution cache in use
    done_bytes: int = 0  # fetched of the generation that is being prepared
    total_bytes: int = 0
    peak_memory: int = 0  # bytes; 0: not loaded
    next: NextStatus | None = None
    memory: MemoryStatus | None = None  # None: not in memory

    @property
    def serving(self) -> bool:
        """Whether requests for the model are answered."""
        return self.state in SERVING
