"""What an inspection finds out about a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.models.descriptor import Format, Modality, ModelFacts
from services.models.formats.safetensors_header import Tensor
from services.models.hub.source_tree import FileTree
from services.models.manifest import Manifest, ManifestFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A model that can be registered: what it is, and which files of the source belong to it."""

    format: Format
    modality: Modality
    architecture: str
    capabilities: frozenset[str]
    context_tokens: int  # 0: it does not say
    files: tuple[ManifestFile, ...]  # ordered by path
    primary: str  # path of the file that a runtime opens; empty: it opens the folder
    quantization: str = ""  # as in ModelFacts
    unpacked_size: int = 0  # as in ModelFacts
    # What an image model's headers say: component -> its tensors; of a checkpoint of one file all of them under "".
    tensors: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def facts(self, model_id: str) -> ModelFacts:
        """As a model of that id."""
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
        """Its files, pinned to where they were found. Raises ModelInvalid when their names cannot be allowed."""
        manifest = Manifest(
            files=self.files,
            primary=self.primary,
            repository=tree.repository,
            revision=tree.revision,
            folder=tree.folder,
        )
        manifest.check()
        return manifest
