"""Registrations of small local files, and a manager of fake residents."""

from __future__ import annotations

import asyncio
from pathlib import Path

from services.errors import AllmError
from services.models.descriptor import ModelDescriptor, ModelFacts
from services.models.desired import Artifact, DesiredModel
from services.models.manifest import Manifest, ManifestFile
from services.models.runtimes import RuntimeSpec
from services.residency.manager import ModelManager


def local_manifest(folder: Path, name: str = "m.gguf", content: bytes = b"weights") -> Manifest:
    """Writes a file and returns its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return Manifest(files=(ManifestFile(path=name, size=len(content)),), primary=name, folder=str(folder))


def facts(model_id: str = "m", architecture: str = "llama", size: int = 7) -> ModelFacts:
    return ModelFacts(
        id=model_id,
        modality="text",
        format="gguf",
        architecture=architecture,
        capabilities=frozenset({"chat"}),
        size=size,
        context_tokens=2048,
    )


def registration(
    manifest: Manifest,
    model_id: str = "m",
    generation: int = 1,
    architecture: str = "llama",
    keep_loaded: bool = False,
    unloads: int = 0,
    runtime: str = "",
    created: int = 1,
    artifacts: tuple[Artifact, ...] = (),
) -> DesiredModel:
    return DesiredModel(
        facts=facts(model_id, architecture),
        aliases=(),
        source="file:///somewhere",
        generation=generation,
        manifest=manifest,
        created=created,
        updated=created,
        keep_loaded=keep_loaded,
        unloads=unloads,
        runtime=runtime,
        artifacts=artifacts,
    )


class Loaded:
    """A resident that only records its calls."""

    def __init__(self, descriptor: ModelDescriptor) -> None:
        self.descriptor = descriptor
        self.alive = True
        self.memory = 4096
        self.asked = 0  # number of reads of its memory

    @property
    def peak_memory(self) -> int:
        self.asked += 1
        return self.memory

    async def close(self) -> None:
        self.alive = False


class Loader:
    """A loader that loads immediately, fails with `failure`, or waits while the gate is closed."""

    def __init__(self) -> None:
        self.failure: AllmError | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.made: list[Loaded] = []

    async def __call__(self, descriptor: ModelDescriptor, runtime: RuntimeSpec) -> Loaded:
        await self.gate.wait()
        if self.failure:
            raise self.failure
        self.made.append(Loaded(descriptor))
        return self.made[-1]

    @property
    def alive(self) -> list[Loaded]:
        return [loaded for loaded in self.made if loaded.alive]


Manager = ModelManager[Loaded]
