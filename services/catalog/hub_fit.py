"""Estimates whether a model on the hub fits the machines of this installation, by rules of thumb.

The services estimate exactly once they have its headers; a search has its size, its architecture and what the replicas
report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from services.catalog.replica_status import Replica
from services.errors import Unsupported
from services.models.descriptor import ModelFacts
from services.models.runtimes import RuntimeSpec
from services.settings.modality_settings import MIB
from services.telemetry.figures import HostFigures

Fit = Literal["unknown", "fits", "needs_room", "too_large", "unsupported"]
FITS: tuple[Fit, ...] = ("fits", "needs_room", "unknown", "too_large", "unsupported")  # best first

_CACHE_SHARE = 0.25  # of the weights, for caches and buffers
_WORKERS: Mapping[str, int] = {"llama_cpp": 500 * MIB}  # bytes of a worker with the smallest model
_WORKER = 900 * MIB  # of one that imports torch
_COPIES = 2  # torch on a processor joins or converts the weights of text models, and keeps what it read


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFit:
    """The outlook of a model, on the replica where it is best."""

    fit: Fit
    memory: int = 0  # estimated bytes; 0: unknown
    reason: str = ""  # for `unsupported` and `too_large`, as a sentence without a full stop


def fit_of(facts: ModelFacts, replicas: Iterable[tuple[Replica, HostFigures | None]]) -> HubFit:
    """Returns the outlook of a model on these replicas of its modality, each with its host if that is known."""
    found = [_on(facts, replica, host) for replica, host in replicas]
    if not found:
        return HubFit(fit="unsupported", reason=f"no {facts.modality} service is running")
    return min(found, key=lambda each: FITS.index(each.fit))


def memory_of(facts: ModelFacts, runtime: RuntimeSpec) -> int:
    """Returns the estimated bytes of a model with a runtime: weights, caches and the worker."""
    copies = _COPIES if facts.modality == "text" and runtime.name != "llama_cpp" and not runtime.gpu else 1
    return round(facts.size * (copies + _CACHE_SHARE)) + _WORKERS.get(runtime.name, _WORKER)


def _on(facts: ModelFacts, replica: Replica, host: HostFigures | None) -> HubFit:
    try:
        runtime = _runtime(facts, replica)
    except Unsupported as refusal:
        return HubFit(fit="unsupported", reason=refusal.message.removeprefix(f"{facts.id}: "))
    if runtime is None:
        return HubFit(fit="unknown")
    memory = memory_of(facts, runtime)
    if host is None:
        return HubFit(fit="unknown", memory=memory)
    place, total, used = _place(runtime, host)
    if memory > total:
        gib = 1024 * MIB
        reason = f"it takes about {memory / gib:.1f} GiB, and {place} has {total / gib:.1f} GiB for models"
        return HubFit(fit="too_large", memory=memory, reason=reason)
    return HubFit(fit="fits" if memory <= total - used else "needs_room", memory=memory)


def _runtime(facts: ModelFacts, replica: Replica) -> RuntimeSpec | None:
    """Returns the runtime that the replica would choose; without a known architecture the first that reads the format.

    Raises Unsupported if there is none.
    """
    if facts.architecture:
        return replica.registry.resolve(facts)
    readers = [one for one in replica.registry.runtimes if facts.format in one.formats and not one.missing]
    if not readers:
        raise Unsupported(f"no runtime here reads {facts.modality} models in {facts.format}")
    return readers[0]


def _place(runtime: RuntimeSpec, host: HostFigures) -> tuple[str, int, int]:
    """Returns the name of the memory that a runtime uses, its bytes for models, and the used ones of them."""
    if runtime.gpu and host.devices:
        largest = max(host.devices, key=lambda each: (each.total - each.used, each.total))
        return largest.name, largest.total, largest.used
    return host.name or "the host", round(host.total * host.threshold), host.used
