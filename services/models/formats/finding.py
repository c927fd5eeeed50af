"""The result of a model's inspection, and helpers of all inspections: messages that name files, and parallel reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from services.errors import ModelInvalid
from services.models.descriptor import Format, Modality, ModelFacts
from services.models.formats.safetensors_header import Tensor
from services.models.hub.source import FileTree
from services.models.manifest import Manifest, ManifestFile

MOST = 10  # most names in a message
THREADS = 8
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def listed(names: Iterable[str]) -> str:
    """Joins names to `a, b, c`, with `and 5 more` if there are too many."""
    ordered = sorted(names)
    shown = ", ".join(name[:200] for name in ordered[:MOST])
    return f"{shown} and {len(ordered) - MOST} more" if len(ordered) > MOST else shown


def place(tree: FileTree) -> str:
    """Returns the repository or the folder of the files."""
    return tree.repository or tree.folder


def there(tree: FileTree, path: str) -> bool:
    """True if the file exists and is not empty."""
    return path in tree.files and tree.files[path].size > 0


def missing(tree: FileTree, paths: Iterable[str]) -> ModelInvalid:
    """Builds the error that names missing or empty files."""
    paths = list(paths)
    return ModelInvalid(f"{place(tree)}: {listed(paths)} {'are' if len(paths) > 1 else 'is'} missing or empty")


def manifest_of(tree: FileTree, files: tuple[ManifestFile, ...], primary: str = "") -> Manifest:
    """Builds a manifest of files, pinned to their source. Raises ModelInvalid if a file name is not allowed."""
    manifest = Manifest(
        files=files, primary=primary, repository=tree.repository, revision=tree.revision, folder=tree.folder
    )
    manifest.check()
    return manifest


def in_parallel(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Returns the results in the order of the items. The first failure cancels the rest and is raised."""
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="inspect")
    try:
        return list(pool.map(function, items))
    finally:
        pool.shutdown(cancel_futures=True)


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
        return manifest_of(tree, self.files, self.primary)
