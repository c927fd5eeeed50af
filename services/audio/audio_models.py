"""The audio models that requests may use: found by name, and held loaded for as long as somebody uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.audio.engine.messages import Task
from services.audio.loaded import LoadedWhisper
from services.models.store import StoredModel
from services.residency.registered_models import RegisteredModels, require

CAPABILITIES: dict[Task, str] = {"transcribe": "transcription", "translate": "translation"}


class AudioModels(RegisteredModels[LoadedWhisper]):
    """The audio models that are registered, and what is loaded of them."""

    @asynccontextmanager
    async def loaded(self, stored: StoredModel, task: Task) -> AsyncIterator[LoadedWhisper]:
        """Leases a model for a task; where it cannot be loaded here but others have it, the error says so.

        Raises:
            Unsupported: the model is not for that, such as an English-only one for translations; `param` is `model`.
            ModelInvalid, ModelNotReady, Unsupported, OutOfMemory, Internal, Timeout: it cannot be served here.
        """
        require(stored, CAPABILITIES[task])
        async with self._leased(stored) as model:
            yield model
