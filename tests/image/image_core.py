"""The core of the image service on real weights: store, manager, codecs and images, without a network API."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from services.image.images import Event, Images, PictureFile
from services.image.manager import ImageManager, ImageModels, LoadedPipeline
from services.image.parameters import ImageRequest
from services.models.descriptor import describe
from services.models.desired import DesiredModel
from services.models.formats.inspect import inspect
from services.models.hub.source import LocalTree
from services.models.runtime_choice import EngineRegistry
from services.models.store import ModelStore, ServedGeneration, StoredModel
from services.pictures.pictures import Pictures
from services.settings.settings import load_settings

PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Studio:
    """The running core, with helpers for tests."""

    manager: ImageManager
    models: ImageModels
    images: Images
    pictures: Pictures

    @property
    def residents(self) -> list[LoadedPipeline]:
        """Lists the loaded models."""
        return [resident for _, resident in self.manager.residents()]

    @asynccontextmanager
    async def generating(self, request: ImageRequest, client: str = "me") -> AsyncIterator[AsyncIterator[Event]]:
        """Finds the model and runs a request, as the servicers do."""
        async with self.images.generate(await self.models.find(request.model), request, client) as events:
            yield events

    async def events(self, request: ImageRequest, client: str = "me") -> list[Event]:
        """Returns all events of a request."""
        async with self.generating(request, client) as events:
            return [event async for event in events]

    async def generated(self, **changes: object) -> list[PictureFile]:
        """Returns the pictures of a request, in order."""
        events = await self.events(asked(**changes))
        done = [event for event in events if isinstance(event, PictureFile) and event.partial is None]
        return sorted(done, key=lambda picture: picture.index)


def asked(**changes: object) -> ImageRequest:
    """Builds a small request."""
    return ImageRequest(**{"model": "tiny", "prompt": "a red circle", "steps": 2, "seed": 7} | changes)  # type: ignore[arg-type]


def opened(picture: PictureFile) -> Image.Image:
    """Opens a picture's file."""
    image = Image.open(io.BytesIO(picture.data))
    image.load()
    return image


@asynccontextmanager
async def image_core(folder: Path, models: dict[str, Path], **environ: str) -> AsyncIterator[Studio]:
    """Runs the core with models: id -> folder."""
    threads = min(2, len(os.sched_getaffinity(0)))
    defaults = {"ALLM_HOME": str(folder), "ALLM_THREADS": str(threads), "ALLM_IMAGE_CODECS": "2"}
    settings = load_settings(defaults | environ).image
    store, registry = ModelStore("me"), EngineRegistry("cpu", forced=True)
    for model_id, path in models.items():
        store.put(stored(model_id, path, registry))
    manager, pictures = ImageManager(settings), Pictures(settings)
    await pictures.start()
    try:
        models = ImageModels(store, manager)
        yield Studio(manager, models, Images(models, pictures, settings), pictures)
    finally:
        await manager.close()
        await pictures.close()


def stored(model_id: str, path: Path, registry: EngineRegistry) -> StoredModel:
    """Describes a model as the provisioner would store it, found by the same inspection."""
    tree = LocalTree(path, [path])
    finding = inspect(tree, "diffusers", "")
    manifest, facts = finding.manifest(tree), finding.facts(model_id)
    desired = DesiredModel(
        facts=facts, aliases=(), source=f"file://{path}", generation=1, manifest=manifest, created=1, updated=1
    )
    serving = ServedGeneration(descriptor=describe(facts, 1, manifest, path), runtime=registry.resolve(facts))
    return StoredModel(desired=desired, serving=serving, problem=None)
