"""Predicts how a replica would run a model, from the replica's offers and by the replica's own rules."""

from __future__ import annotations

from dataclasses import replace

from services.catalog.replica_status import Replica
from services.errors import Unsupported
from services.models.artifacts import runtime_of
from services.models.desired import Artifact, DesiredModel
from services.models.runtime_choice import Verdict
from services.models.runtimes import RuntimeSpec
from services.models.status import State


def expected_state(replica: Replica, desired: DesiredModel) -> tuple[State, str]:
    """Returns the expected state, and its reason, of a model that a replica has not reported yet."""
    if not _caches(replica, desired)[0]:
        try:
            replica.registry.resolve(desired.facts, desired.measured, desired.runtime, desired.engine)
        except Unsupported as refusal:
            return "unsupported", refusal.message
    return "pending", f"{replica.name} has not started on it yet"


def explain(replica: Replica, desired: DesiredModel) -> list[Verdict]:
    """Returns a replica's verdict on each of its runtimes, best first; one with a fitting execution cache precedes all.

    The verdict on a runtime also explains why an execution cache for it is not used.
    """
    fitting, skipped = _caches(replica, desired)
    return _with_skipped(_verdicts(replica, desired, fitting), skipped)


def _verdicts(replica: Replica, desired: DesiredModel, fitting: list[tuple[Artifact, RuntimeSpec]]) -> list[Verdict]:
    verdicts = replica.registry.explain(desired.facts, desired.measured, desired.runtime, desired.engine)
    caches: dict[str, list[str]] = {}
    runtimes: dict[str, RuntimeSpec] = {}
    for artifact, runtime in fitting:
        caches.setdefault(runtime.name, []).append(artifact.name)
        runtimes[runtime.name] = runtime
    if not caches:
        return verdicts
    first = next(iter(caches))
    with_cache = [
        Verdict(runtime=runtimes[name], able=True, chosen=name == first, reason=_cache_reason(found, name == first))
        for name, found in caches.items()
    ]
    return with_cache + [_behind(verdict) for verdict in verdicts if verdict.runtime.name not in caches]


def _caches(
    replica: Replica, desired: DesiredModel
) -> tuple[list[tuple[Artifact, RuntimeSpec]], list[tuple[str, str]]]:
    """Returns the execution caches that a replica can use, in order, each with its runtime; and for each of the others
    its runtime and the reason."""
    fitting: list[tuple[Artifact, RuntimeSpec]] = []
    skipped: list[tuple[str, str]] = []
    for artifact in desired.artifacts:
        try:
            runtime = runtime_of(artifact, replica.registry, desired.runtime, desired.engine)
        except Unsupported as refusal:
            reason = f"the execution cache {artifact.name} is skipped: {refusal.message}"
            skipped.append((artifact.runtime, reason))
        else:
            fitting.append((artifact, runtime))
    return fitting, skipped


def _with_skipped(verdicts: list[Verdict], skipped: list[tuple[str, str]]) -> list[Verdict]:
    """Adds the reasons of skipped execution caches to their runtime's verdict, or to the first if it has none."""
    if not verdicts:
        return verdicts
    names = {verdict.runtime.name for verdict in verdicts}
    notes = [(name if name in names else verdicts[0].runtime.name, words) for name, words in skipped]
    return [
        replace(
            verdict,
            reason="; ".join([verdict.reason, *(words for name, words in notes if name == verdict.runtime.name)]),
        )
        for verdict in verdicts
    ]


def _cache_reason(names: list[str], chosen: bool) -> str:
    caches = ", ".join(names)
    if chosen:
        return f"an official execution cache fits the device and the runtime: {caches}"
    return f"it could run an official execution cache ({caches}); another is preferred"


def _behind(verdict: Verdict) -> Verdict:
    if not verdict.chosen:
        return verdict
    reason = "it could run the model's own files; an official execution cache is preferred"
    return replace(verdict, chosen=False, reason=reason)
