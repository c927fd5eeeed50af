"""The models that a service knows, by id and alias, and what it can do for each of them now."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from services.errors import AllmError, Internal, ModelNotFound, ModelNotReady
from services.models.descriptor import ModelDescriptor
from services.models.desired import DesiredModel
from services.models.registry import Runtime


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
        # alias -> the ids that have it, in the order in which they got it. While one passes from a model to another,
        # both may have it for a moment, and what is put again of the first must not take it from the second.
        self._names: dict[str, dict[str, None]] = {}
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
        known = self._models.get(model.id)
        self._drop(model.id, set(known.desired.aliases if known else ()) - set(model.desired.aliases))
        self._models[model.id] = model
        for alias in model.desired.aliases:
            self._names.setdefault(alias, {}).setdefault(model.id)

    def remove(self, model_id: str) -> None:
        """Forgets a model, if it is there."""
        if known := self._models.pop(model_id, None):
            self._drop(model_id, known.desired.aliases)

    def get(self, name: str) -> StoredModel:
        """The model of that id or alias. Raises ModelNotFound."""
        found = self._models.get(next(reversed(self._names.get(name, {name: None}))))
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

    def _drop(self, model_id: str, aliases: Iterable[str]) -> None:
        for alias in aliases:
            owners = self._names[alias]
            del owners[model_id]
            if not owners:
                del self._names[alias]
