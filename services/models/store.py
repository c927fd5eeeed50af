"""The models that a service knows, by id and alias, with their current serving state."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from services.errors import AllmError, Internal, ModelNotFound, ModelNotReady
from services.models.descriptor import ModelDescriptor
from services.models.desired import DesiredModel
from services.models.runtimes import RuntimeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedGeneration:
    """A generation whose files are complete on this machine, and the runtime that serves it."""

    descriptor: ModelDescriptor
    runtime: RuntimeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A registered model. If `serving` is None, it cannot be served here now, and `problem` says why."""

    desired: DesiredModel
    serving: ServedGeneration | None
    problem: AllmError | None

    @property
    def id(self) -> str:
        """The id that requests name."""
        return self.desired.id


class ModelStore:
    """Looks up models by id or alias. `replica` is this service's name among the replicas."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._models: dict[str, StoredModel] = {}
        # alias -> the ids that have it, oldest first. While an alias moves from one model to another, both may have it
        # for a moment, and a repeated `put` of the first model must not take it back from the second.
        self._names: dict[str, dict[str, None]] = {}
        # Called for an unknown name, which may have been registered a moment ago. May raise an AllmError.
        self.ask: Callable[[str], Awaitable[None]] | None = None

    def __iter__(self) -> Iterator[StoredModel]:
        """Iterates over all models, sorted by id."""
        return iter(sorted(self._models.values(), key=lambda model: model.id))

    def __contains__(self, name: object) -> bool:
        """True if a model with this id or alias is known."""
        return name in self._models or name in self._names

    def put(self, model: StoredModel) -> None:
        """Adds or replaces a model."""
        known = self._models.get(model.id)
        self._drop(model.id, set(known.desired.aliases if known else ()) - set(model.desired.aliases))
        self._models[model.id] = model
        for alias in model.desired.aliases:
            self._names.setdefault(alias, {}).setdefault(model.id)

    def remove(self, model_id: str) -> None:
        """Removes a model, if it is known."""
        if known := self._models.pop(model_id, None):
            self._drop(model_id, known.desired.aliases)

    def get(self, name: str) -> StoredModel:
        """Returns the model with this id or alias. Raises ModelNotFound."""
        found = self._models.get(next(reversed(self._names.get(name, {name: None}))))
        if found is None:
            raise ModelNotFound(f"The model `{name}` does not exist.", param="model")
        return found

    async def find(self, name: str) -> StoredModel:
        """Returns the model like `get`, but asks the catalog before it raises ModelNotFound."""
        if name not in self and self.ask:
            await self.ask(name)
        return self.get(name)

    def serveable(self, model: StoredModel) -> ServedGeneration:
        """Returns the generation and runtime that serve a model here.

        Raises:
            ModelNotReady: it is not ready yet, or only on another replica, which the gateway asks next.
            ModelInvalid, Unsupported: it cannot be served.
        """
        if model.serving is None:
            # A copy, because an error that is raised repeatedly would collect the traceback of each time.
            raise self.elsewhere(model, copy.copy(model.problem) or Internal(f"{model.id} has no state"))
        return model.serving

    def elsewhere(self, model: StoredModel, problem: AllmError) -> AllmError:
        """Returns the error for a local problem with a model: ModelNotReady if another replica has the model ready."""
        if model.desired.ready_replicas - {self._replica} and not isinstance(problem, ModelNotReady):
            return ModelNotReady(f"{model.id} is not ready on this replica: {problem.message}", retry_after=1)
        return problem

    def _drop(self, model_id: str, aliases: Iterable[str]) -> None:
        for alias in aliases:
            owners = self._names[alias]
            del owners[model_id]
            if not owners:
                del self._names[alias]
