"""The image models that requests may use: found by name, and held loaded for as long as somebody uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from services.image.loaded import LoadedPipeline
from services.image.manager import ImageManager
from services.models.store import ModelStore, StoredModel
from services.rpc.errors import AllmError, Unsupported

CAPABILITY = "image"


class ImageModels:
    """What is registered, and what is loaded of it."""

    def __init__(self, store: ModelStore, manager: ImageManager) -> None:
        self._store = store
        self._manager = manager

    async def find(self, name: str) -> StoredModel:
        """The model of that id or alias. Raises ModelNotFound."""
        return await self._store.find(name)

    @asynccontextmanager
    async def loaded(self, stored: StoredModel) -> AsyncIterator[LoadedPipeline]:
        """Leases a model; where it cannot be loaded here but others have it, the error says so.

        Raises:
            Unsupported: the model is for something else; `param` is `model`.
            ModelInvalid, ModelNotReady, Unsupported, OutOfMemory, Internal, Timeout: it cannot be served here.
        """
        able = stored.desired.facts.capabilities
        if CAPABILITY not in able:
            offered = ", ".join(sorted(able)) or "nothing here"
            raise Unsupported(f"The model `{stored.id}` is for {offered}, not for images.", param="model")
        serving = self._store.serveable(stored)
        async with AsyncExitStack() as stack:
            try:
                lease = self._manager.lease(serving.descriptor, serving.runtime)
                model = await stack.enter_async_context(lease)
            except AllmError as problem:
                raise self._store.elsewhere(stored, problem) from problem
            yield model
