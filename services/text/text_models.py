"""The text models that requests may use: found by name, and held loaded for as long as somebody uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from services.models.store import ModelStore, StoredModel
from services.rpc.errors import AllmError, Unsupported
from services.text.loaded import LoadedTextModel
from services.text.loaded_encoder import LoadedEncoder
from services.text.manager import TextManager, TextResident


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
        _require(stored, "chat")
        self._store.serveable(stored)
        return stored.id

    @asynccontextmanager
    async def loaded(self, stored: StoredModel) -> AsyncIterator[LoadedTextModel]:
        """Leases a model that writes; where it cannot be loaded here but others have it, the error says so.

        Raises:
            ModelInvalid, ModelNotReady, Unsupported, OutOfMemory, Internal, Timeout: it cannot be served here.
        """
        _require(stored, "chat")
        async with self._leased(stored) as model:
            if not isinstance(model, LoadedTextModel):
                raise TypeError("a model is loaded for what it can do")
            yield model

    @asynccontextmanager
    async def encoder(self, stored: StoredModel) -> AsyncIterator[LoadedEncoder]:
        """Leases a model that embeds. Raises as `loaded` does."""
        _require(stored, "embeddings")
        async with self._leased(stored) as model:
            if not isinstance(model, LoadedEncoder):
                raise TypeError("a model is loaded for what it can do")
            yield model

    @asynccontextmanager
    async def _leased(self, stored: StoredModel) -> AsyncIterator[TextResident]:
        serving = self._store.serveable(stored)
        async with AsyncExitStack() as stack:
            try:
                lease = self._manager.lease(serving.descriptor, serving.runtime)
                model = await stack.enter_async_context(lease)
            except AllmError as problem:
                raise self._store.elsewhere(stored, problem) from problem
            yield model


def _require(stored: StoredModel, capability: str) -> None:
    """Raises Unsupported, a caller's mistake, where the model is one for something else."""
    able = stored.desired.facts.capabilities
    if capability not in able:
        offered = ", ".join(sorted(able)) or "nothing here"
        raise Unsupported(f"The model `{stored.id}` is for {offered}, not for {capability}.", param="model")
