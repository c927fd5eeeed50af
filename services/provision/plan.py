"""The plan to serve a model here: its files and its runtime. Making one fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.errors import Unsupported
from services.models.artifacts import allowed, runtime_of
from services.models.descriptor import (
    AS_THE_SERVICE_DOES,
    EngineSettings,
    LoraFile,
    ModelDescriptor,
    ModelFacts,
    describe,
)
from services.models.desired import Artifact, DesiredModel, ModelPart
from services.models.manifest import Manifest
from services.models.runtime_choice import EngineRegistry
from services.models.runtimes import RuntimeSpec
from services.settings.settings import ModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """Files, and a runtime that reads them. `facts` are those of the files."""

    facts: ModelFacts
    manifest: Manifest
    runtime: RuntimeSpec
    parts: tuple[ModelPart, ...] = ()  # base model and LoRAs that these files need
    artifact: str = ""  # name of the execution cache; empty: the model's own files
    engine: EngineSettings = AS_THE_SERVICE_DOES

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """The manifests of all files that the plan needs; the model itself comes last."""
        return (*(part.manifest for part in self.parts), self.manifest)

    def descriptor(self, generation: int, folders: Sequence[Path]) -> ModelDescriptor:
        """Describes the model once all files are here; `folders` hold the files of the `manifests`."""
        *part_folders, folder = folders
        parts = list(zip(self.parts, part_folders, strict=True))
        return describe(
            self.facts,
            generation,
            self.manifest,
            folder,
            base=next((where for part, where in parts if part.kind == "base"), None),
            loras=tuple(
                LoraFile(path=where / part.manifest.primary, scale=part.scale)
                for part, where in parts
                if part.kind == "lora"
            ),
            engine=self.engine,
        )


def make_plans(desired: DesiredModel, registry: EngineRegistry, settings: ModelSettings) -> list[ModelPlan]:
    """Returns all ways to serve a model here, best first: matching official execution caches, then its own files.

    Raises:
        Unsupported: none exists; the message says why its own files cannot be run.
    """
    plans = [
        plan
        for artifact in desired.artifacts
        if settings.artifacts and (plan := _artifact_plan(artifact, desired, registry, settings.publishers))
    ]
    try:
        runtime = registry.resolve(desired.facts, desired.measured, desired.runtime, desired.engine)
    except Unsupported:
        if not plans:
            raise
    else:
        own = ModelPlan(
            facts=desired.facts,
            manifest=desired.manifest,
            runtime=runtime,
            parts=desired.parts,
            engine=desired.engine,
        )
        plans.append(own)
    return plans


def _artifact_plan(
    artifact: Artifact, desired: DesiredModel, registry: EngineRegistry, publishers: tuple[str, ...]
) -> ModelPlan | None:
    """Makes a plan with an execution cache; None if publisher, device or runtime does not match."""
    if not allowed(artifact.manifest.repository, publishers):
        return None
    try:
        runtime = runtime_of(artifact, registry, desired.runtime, desired.engine)
    except Unsupported:
        return None
    return ModelPlan(
        facts=artifact.facts,
        manifest=artifact.manifest,
        runtime=runtime,
        artifact=artifact.name,
        engine=desired.engine,
    )
