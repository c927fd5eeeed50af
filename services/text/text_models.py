"""The text models that requests may use: found by name, and held loaded for as long as somebody uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.models.store import StoredModel
from services.residency.registered_models import RegisteredModels, require
from services.text.loaded import LoadedTextModel
from services.text.loaded_encoder import LoadedEncoder
from services.text.manager import TextResident


class TextModels(RegisteredModels[TextResident]):
    """The text models that are registered, and what is loaded of them."""

    async def servable_id(self, name: str) -> str:
        """The id of a model; raises what `loaded` would where it cannot be served here. Loads nothing."""
        stored = await self.find(name)
        require(stored, "chat")
        self._store.serveable(stored)
        return stored.id

    @asynccontextmanager
    async def loaded(self, stored: StoredModel) -> AsyncIterator[LoadedTextModel]:
        """Leases a model that writes; where it cannot be loaded here but others have it, the error says so.

        Raises:
            ModelInvalid, ModelNotReady, Unsupported, OutOfMemory, Internal, Timeout: it cannot be served here.
        """
        require(stored, "chat")
        async with self._leased(stored) as model:
            if not isinstance(model, LoadedTextModel):
                raise TypeError("a model is loaded for what it can do")
            yield model

    @asynccontextmanager
    async def encoder(self, stored: StoredModel) -> AsyncIterator[LoadedEncoder]:
        """Leases a model that embeds. Raises as `loaded` does."""
        require(stored, "embeddings")
        async with self._leased(stored) as model:
            if not isinstance(model, LoadedEncoder):
                raise TypeError("a model is loaded for what it can do")
            yield model
