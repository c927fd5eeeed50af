"""The result of a model's inspection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.models.descriptor import Format, Modality, ModelFacts
from services.models.formats.safetensors_header import Tensor
from services.models.hub.source_tree import FileTree
from services.models.manifest import Manifest, ManifestFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A model that can be registered: its properties, and the files of the source that belong to it."""

    format: Format
    modality: Modality
    architecture: str
    capabilities: frozenset[str]
    context_tokens: int  # 0: unknown
    files: tuple[ManifestFile, ...]  # ordered by path
    primary: str  # path of the file that the runtime opens; empty: it opens the folder
    quantization: str = ""  # as in ModelFacts
    unpacked_size: int = 0  # as in ModelFacts
    # Tensors of an image model: component -> name -> tensor; "" is the component of a single-file checkpoint.
    tensors: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def facts(self, model_id: str) -> ModelFacts:
        """Builds the facts of a model with this id."""
        return ModelFacts(
            id=model_id,
            modality=self.modality,
            format=self.format,
            architecture=self.architecture,
            capabilities=self.capabilities,
            size=sum(file.size for file in self.files),
            context_tokens=self.context_tokens,
            quantization=self.quantization,
            unpacked_size=self.unpacked_size,
        )

    def manifest(self, tree: FileTree) -> Manifest:
        """Builds the manifest, pinned to the source. Raises ModelInvalid if a file name is not allowed."""
        manifest = Manifest(
            files=self.files,
            primary=self.primary,
            repository=tree.repository,
            revision=tree.revision,
            folder=tree.folder,
        )
        manifest.check()
        return manifest
