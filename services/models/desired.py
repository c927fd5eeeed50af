"""The desired state of a model in the catalog: everything that a service needs to prepare it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.models.descriptor import AS_THE_SERVICE_DOES, EngineSettings, ModelFacts
from services.models.manifest import Manifest
from services.models.runtime_choice import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """An execution cache from another repository, by an official publisher.

    `facts` describe the cache: the format and architecture that its runtime reads. The model itself keeps its format.
    """

    runtime: str
    devices: frozenset[str]
    facts: ModelFacts
    manifest: Manifest

    @property
    def name(self) -> str:
        """The name that statuses show."""
        return f"{self.manifest.repository}@{self.manifest.revision}"


PartKind = Literal["base", "lora"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """Additional files of a model from another source, pinned like its own.

    `base`: configuration and tokenizers for a single-file image checkpoint, which holds only weights. `lora`: a LoRA
    that is added to the weights of an image model.
    """

    kind: PartKind
    source: str  # as registered; empty: the default repository for such a checkpoint
    manifest: Manifest
    scale: float = 1.0  # of a `lora`


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDefaults:
    """Default request parameters of an image model. None: the pipeline's default."""

    steps: int | None = None
    guidance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredModel:
    """A registered model."""

    facts: ModelFacts
    aliases: tuple[str, ...]
    source: str  # as registered
    generation: int  # counts the sources, from 1
    manifest: Manifest
    created: int  # seconds since the epoch
    updated: int
    parts: tuple[ModelPart, ...] = ()  # the base first, then LoRAs in their order
    image_defaults: ImageDefaults = ImageDefaults()
    artifacts: tuple[Artifact, ...] = ()
    measured: tuple[Measurement, ...] = ()
    keep_loaded: bool = False
    runtime: str = ""  # requested last, by LoadModel or the registration; empty: the registry's choice
    registered_runtime: str = ""  # requested by the registration; applies if LoadModel requests none
    engine: EngineSettings = AS_THE_SERVICE_DOES
    unloads: int = 0  # counts UnloadModel calls
    ready_replicas: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        """The id that requests name."""
        return self.facts.id
