"""The text models that requests may use: found by name, and held loaded for as long as somebody uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from services.models.store import ModelStore, StoredModel
from services.rpc.errors import AllmError
from services.text.loaded import LoadedTextModel
from services.text.manager import TextManager


class TextModels:
    """What is registered, and what is loaded of it."""

    def __init__(self, store: ModelStore, manager: TextManager) -> None:
        self._store = store
        self._manager = manager

    async def find(self, name: str) -> StoredModel:
        """The model of that id or alias. Raises ModelNotFound."""
        return await self._store.find(name)

    async def servable_id(self, name: str) -> str:
        """The id of a model; raises what `loaded` would where it cannot be served here. Loads nothing."""
        stored = await self._store.find(name)
        self._store.serveable(stored)
        return stored.id

    @asynccontextmanager
    async def loaded(self, stored: StoredModel) -> AsyncIterator[LoadedTextModel]:
        """Leases a model; where it cannot be loaded here but others have it, the error says so to the gateway.

        Raises:
            ModelInvalid, ModelNotReady, Unsupported, OutOfMemory, Internal, Timeout: it cannot be served here.
        """
        serving = self._store.serveable(stored)
        async with AsyncExitStack() as stack:
            try:
                lease = self._manager.lease(serving.descriptor, serving.runtime)
                model = await stack.enter_async_context(lease)
            except AllmError as problem:
                raise self._store.elsewhere(stored, problem) from problem
            yield model
