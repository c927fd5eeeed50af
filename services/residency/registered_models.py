"""The registered models: lookup by name, with access checks, and leases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Generic, TypeVar

from services.auth.caller import current_caller
from services.errors import AllmError, Unsupported
from services.models.store import ModelStore, StoredModel
from services.residency.manager import ModelManager
from services.residency.memory.reservation import resident_key
from services.residency.slot import Resident

R = TypeVar("R", bound=Resident)


class RegisteredModels(Generic[R]):
    """The registered models, and leases on them. Each service's subclass adds the kinds of leases that it needs."""

    def __init__(self, store: ModelStore, manager: ModelManager[R]) -> None:
        self._store = store
        self._manager = manager

    async def find(self, name: str) -> StoredModel:
        """Returns the model with this id or alias.

        Every use of a model for a caller begins here. Raises ModelNotFound, and ModelNotAllowed if the caller's key
        has a list without the model.
        """
        caller = current_caller()
        with caller.looking_for(name):
            stored = await self._store.find(name)
        caller.check_model(name, stored.id, *stored.desired.aliases)
        return stored

    def knows(self, name: str) -> bool:
        """Returns whether a model has this id or alias, also if the caller may not use it."""
        return name in self._store

    def keep(self, stored: StoredModel, seconds: float) -> None:
        """Records how long a model should stay in memory after a request: see ModelManager.keep."""
        if serving := stored.serving:
            self._manager.keep(resident_key(serving.descriptor, serving.runtime), seconds)

    def check_allowed(self, name: str) -> None:
        """Raises ModelNotAllowed for a model, registered or no longer, that the caller may not use."""
        aliases = self._store.get(name).desired.aliases if name in self._store else ()
        current_caller().check_model(name, *aliases)

    @asynccontextmanager
    async def _leased(self, stored: StoredModel) -> AsyncIterator[R]:
        """Leases a model; if it cannot be loaded here, but other replicas have it, the error says so."""
        serving = self._store.serveable(stored)
        async with AsyncExitStack() as stack:
            try:
                lease = self._manager.lease(serving.descriptor, serving.runtime)
                model = await stack.enter_async_context(lease)
            except AllmError as problem:
                raise self._store.elsewhere(stored, problem) from problem
            yield model


def require(stored: StoredModel, capability: str, called: str = "") -> None:
    """Raises Unsupported, a caller's mistake, if the model lacks `capability`. `called`: its name in the message."""
    able = stored.desired.facts.capabilities
    if capability not in able:
        offered = ", ".join(sorted(able)) or "nothing here"
        message = f"The model `{stored.id}` is for {offered}, not for {called or capability}."
        raise Unsupported(message, param="model")
