"""How a model would be served here: with which files, under which runtime. Nothing is fetched to find that out."""

from __future__ import annotations

from dataclasses import dataclass

from services.models.artifacts import allowed
from services.models.descriptor import ModelFacts
from services.models.desired import Artifact, DesiredModel
from services.models.manifest import Manifest
from services.models.registry import EngineRegistry, Runtime
from services.rpc.errors import Unsupported
from services.rpc.settings import ModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Files and a runtime that reads them. `facts` are those of the files."""

    facts: ModelFacts
    manifest: Manifest
    runtime: Runtime
    artifact: str = ""  # name of the execution cache; empty: the model's own files


def make_plans(desired: DesiredModel, registry: EngineRegistry, settings: ModelSettings) -> list[Plan]:
    """All ways to serve a model here, best first: official execution caches that fit, then its own files.

    Raises:
        Unsupported: there is none; the message says why its own files cannot be run.
    """
    plans = [
        plan
        for artifact in desired.artifacts
        if settings.artifacts and (plan := _artifact_plan(artifact, desired, registry, settings.publishers))
    ]
    try:
        runtime = registry.resolve(desired.facts, desired.measured, desired.runtime)
    except Unsupported:
        if not plans:
            raise
    else:
        plans.append(Plan(facts=desired.facts, manifest=desired.manifest, runtime=runtime))
    return plans


def _artifact_plan(
    artifact: Artifact, desired: DesiredModel, registry: EngineRegistry, publishers: tuple[str, ...]
) -> Plan | None:
    """A plan with an execution cache; None where publisher, device or runtime do not match."""
    if not allowed(artifact.manifest.repository, publishers) or registry.device not in artifact.devices:
        return None
    if desired.runtime not in ("", artifact.runtime):
        return None
    try:
        runtime = registry.resolve(artifact.facts, asked=artifact.runtime)
    except Unsupported:
        return None
    return Plan(facts=artifact.facts, manifest=artifact.manifest, runtime=runtime, artifact=artifact.name)
