"""The models that requests may use: found by name, and held loaded for as long as somebody uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Generic, TypeVar

from services.auth.caller import current_caller
from services.errors import AllmError, Unsupported
from services.models.store import ModelStore, StoredModel
from services.residency.manager import ModelManager
from services.residency.resident import Resident

R = TypeVar("R", bound=Resident)


class RegisteredModels(Generic[R]):
    """What is registered, and what is loaded of it. Each service says for what it leases a model."""

    def __init__(self, store: ModelStore, manager: ModelManager[R]) -> None:
        self._store = store
        self._manager = manager

    async def find(self, name: str) -> StoredModel:
        """The model of that id or alias.

        Everything that is done with a model for a caller begins here. Raises ModelNotFound, and ModelNotAllowed where
        the caller's key has a list without it.
        """
        caller = current_caller()
        with caller.looking_for(name):
            stored = await self._store.find(name)
        caller.check_model(name, stored.id, *stored.desired.aliases)
        return stored

    def check_allowed(self, name: str) -> None:
        """Raises ModelNotAllowed for a model, registered here or not any more, that the caller may not use."""
        aliases = self._store.get(name).desired.aliases if name in self._store else ()
        current_caller().check_model(name, *aliases)

    @asynccontextmanager
    async def _leased(self, stored: StoredModel) -> AsyncIterator[R]:
        """Leases a model; where it cannot be loaded here but others have it, the error says so."""
        serving = self._store.serveable(stored)
        async with AsyncExitStack() as stack:
            try:
                lease = self._manager.lease(serving.descriptor, serving.runtime)
                model = await stack.enter_async_context(lease)
            except AllmError as problem:
                raise self._store.elsewhere(stored, problem) from problem
            yield model


def require(stored: StoredModel, capability: str, called: str = "") -> None:
    """Raises Unsupported, a caller's mistake, where the model is one for something else. `called`: in the message."""
    able = stored.desired.facts.capabilities
    if capability not in able:
        offered = ", ".join(sorted(able)) or "nothing here"
        message = f"The model `{stored.id}` is for {offered}, not for {called or capability}."
        raise Unsupported(message, param="model")
