"""The image models that requests may use: found by name, and held loaded for as long as somebody uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.image.loaded import LoadedPipeline
from services.models.store import StoredModel
from services.residency.registered_models import RegisteredModels, require

CAPABILITY = "image"


class ImageModels(RegisteredModels[LoadedPipeline]):
    """The image models that are registered, and what is loaded of them."""

    @asynccontextmanager
    async def loaded(self, stored: StoredModel) -> AsyncIterator[LoadedPipeline]:
        """Leases a model; where it cannot be loaded here but others have it, the error says so.

        Raises:
            Unsupported: the model is for something else; `param` is `model`.
            ModelInvalid, ModelNotReady, Unsupported, OutOfMemory, Internal, Timeout: it cannot be served here.
        """
        require(stored, CAPABILITY, called="images")
        async with self._leased(stored) as model:
            yield model
