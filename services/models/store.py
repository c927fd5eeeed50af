"""The models that a service knows, by id and alias, and what it can do for each of them now."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from services.models.descriptor import ModelDescriptor
from services.models.desired import DesiredModel
from services.models.registry import Runtime
from services.rpc.errors import AllmError, Internal, ModelNotFound, ModelNotReady


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A generation whose files are here, whole, and the runtime that serves it."""

    descriptor: ModelDescriptor
    runtime: Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A registered model. Without `serving` it cannot be served here now, and `problem` says why."""

    desired: DesiredModel
    serving: Serving | None
    problem: AllmError | None

    @property
    def id(self) -> str:
        """What requests name."""
        return self.desired.id


class ModelStore:
    """Looks models up by id or alias. `replica` is the name under which this service is known among the replicas."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._models: dict[str, StoredModel] = {}
        self._names: dict[str, str] = {}  # alias -> id
        # Called for a name that is not known here: it may have been registered a moment ago. May raise an AllmError.
        self.ask: Callable[[str], Awaitable[None]] | None = None

    def __iter__(self) -> Iterator[StoredModel]:
        """All models, by id."""
        return iter(sorted(self._models.values(), key=lambda model: model.id))

    def __contains__(self, name: object) -> bool:
        """Whether a model of that id or alias is known."""
        return name in self._models or name in self._names

    def put(self, model: StoredModel) -> None:
        """Takes a model, in place of what was known of it."""
        self.remove(model.id)
        self._models[model.id] = model
        self._names |= dict.fromkeys(model.desired.aliases, model.id)

    def remove(self, model_id: str) -> None:
        """Forgets a model, if it is there."""
        if known := self._models.pop(model_id, None):
            for alias in known.desired.aliases:
                if self._names.get(alias) == model_id:  # another model may have taken it over meanwhile
                    del self._names[alias]

    def get(self, name: str) -> StoredModel:
        """The model of that id or alias. Raises ModelNotFound."""
        found = self._models.get(self._names.get(name, name))
        if found is None:
            raise ModelNotFound(f"The model `{name}` does not exist.", param="model")
        return found

    async def find(self, name: str) -> StoredModel:
        """As `get`, but asks the catalog before it says that there is no such model."""
        if name not in self and self.ask:
            await self.ask(name)
        return self.get(name)

    def serveable(self, model: StoredModel) -> Serving:
        """What serves a model here.

        Raises:
            ModelNotReady: not yet, or not here but on another replica, which the gateway asks next.
            ModelInvalid, Unsupported: it cannot be.
        """
        if model.serving is None:
            # A copy: an error that is raised again and again would keep what was on the stack each time.
            raise self.elsewhere(model, copy.copy(model.problem) or Internal(f"{model.id} has no state"))
        return model.serving

    def elsewhere(self, model: StoredModel, problem: AllmError) -> AllmError:
        """What to tell of a problem with a model here: if other replicas have it ready, that they should be asked."""
        if model.desired.ready_replicas - {self._replica} and not isinstance(problem, ModelNotReady):
            return ModelNotReady(f"{model.id} is not ready on this replica: {problem.message}", retry_after=1)
        return problem
