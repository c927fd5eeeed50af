"""A model as the catalog wants it: everything that a service needs to prepare it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.models.descriptor import AS_THE_SERVICE_DOES, EngineSettings, ModelFacts
from services.models.manifest import Manifest
from services.models.registry import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """An execution cache from another repository of an official publisher.

    `facts` are its own: the format and architecture that its runtime reads. The model it belongs to keeps its format.
    """

    runtime: str
    devices: frozenset[str]
    facts: ModelFacts
    manifest: Manifest

    @property
    def name(self) -> str:
        """As statuses show it."""
        return f"{self.manifest.repository}@{self.manifest.revision}"


PartKind = Literal["base", "lora"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Files of another source that a model is made of, beside its own, pinned in the same way.

    `base`: configuration and tokenizers for an image checkpoint of one file, which holds only weights. `lora`: what is
    added to the weights of an image model.
    """

    kind: PartKind
    source: str  # as registered; empty: the repository that is usual for such a checkpoint
    manifest: Manifest
    scale: float = 1.0  # of a `lora`: how much of it is added


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDefaults:
    """What an image model is drawn with where a request says nothing. None: what its pipeline says."""

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
    parts: tuple[Part, ...] = ()  # the base first, then LoRAs in their order
    image_defaults: ImageDefaults = ImageDefaults()
    artifacts: tuple[Artifact, ...] = ()
    measured: tuple[Measurement, ...] = ()
    keep_loaded: bool = False
    runtime: str = ""  # asked for last, by LoadModel or the registration; empty: the registry's choice
    registered_runtime: str = ""  # what the registration says of it: what counts where LoadModel says nothing
    engine: EngineSettings = AS_THE_SERVICE_DOES
    unloads: int = 0  # counts UnloadModel calls
    ready_replicas: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        """What requests name."""
        return self.facts.id
