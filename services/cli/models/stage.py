"""The progress of a model's generation, combined over the replicas that prepare it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from allm.models.v1 import model_pb2

from services.cli.models.page import state_word
from services.models.status import SERVING, STATES

HOPELESS = frozenset({"failed", "unsupported"})
_RANK: dict[str, int] = {state: rank for rank, state in enumerate(STATES)}


@dataclass(frozen=True, slots=True)
class Stage:
    """The state of the replica that is furthest, or of the model if no replica reports."""

    state: str
    reason: str = ""
    runtime: str = ""
    device: str = ""
    done: int = 0  # bytes
    total: int = 0

    @property
    def over(self) -> bool:
        """True if waiting is pointless: it serves, or it never will."""
        return self.state in SERVING or self.state in HOPELESS

    @property
    def serving(self) -> bool:
        """True if requests are answered."""
        return self.state in SERVING


Goal = Callable[[model_pb2.Model], Stage | None]  # the stage to stop at; None: continue to wait


def stage(model: model_pb2.Model, generation: int) -> Stage:
    """Returns the stage of a generation."""
    stages = [of_replica(replica, generation) for replica in model.replicas]
    if not stages:
        return Stage(state_word(model.state), model.reason, model.runtime)
    return min(stages, key=lambda each: (_RANK.get(each.state, len(_RANK)), -each.done))


def of_replica(replica: model_pb2.ReplicaStatus, generation: int) -> Stage:
    """Returns the stage of a generation on one replica."""
    source: model_pb2.ReplicaStatus | model_pb2.NextGeneration | None = None
    if replica.generation >= generation:
        source = replica
    elif replica.HasField("next") and replica.next.generation >= generation:
        source = replica.next
    if source is None:
        return Stage("pending")
    state = state_word(source.state)
    runtime = replica.runtime if source is replica else ""
    return Stage(state, source.reason, runtime, replica.device, replica.done_bytes, replica.total_bytes)


def served(generation: int) -> Goal:
    """Returns a goal: a generation serves on some replica, or has failed on all."""

    def goal(model: model_pb2.Model) -> Stage | None:
        reached = stage(model, generation)
        return reached if reached.over else None

    return goal


def loaded(runtime: str = "", *, everywhere: bool = False) -> Goal:
    """Returns a goal: a model is in memory, with `runtime` if named, on one replica or on all that can."""

    def goal(model: model_pb2.Model) -> Stage | None:
        stages = [_with_runtime(replica, runtime) for replica in model.replicas]
        hopeless = [each for each in stages if each.state in HOPELESS]
        held = [each for each in stages if each.state == "loaded" and (not runtime or each.runtime == runtime)]
        if held and (not everywhere or len(held) + len(hopeless) == len(stages)):
            return held[0]
        if stages:
            return hopeless[0] if len(hopeless) == len(stages) else None
        reached = stage(model, 0)
        return reached if reached.state in HOPELESS else None

    return goal


def _with_runtime(replica: model_pb2.ReplicaStatus, runtime: str) -> Stage:
    """Returns a replica's stage; that of `runtime` if this has failed while another runtime still serves."""
    now = of_replica(replica, 0)
    if runtime and now.runtime != runtime and replica.HasField("next"):
        state = state_word(replica.next.state)
        if state in HOPELESS:
            return Stage(state, replica.next.reason, runtime, replica.device)
    return now
