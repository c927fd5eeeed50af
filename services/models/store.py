"""The models that this process knows, by id and alias: for now the static list of its settings."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from services.models.descriptor import ModelDescriptor, describe_gguf
from services.models.registry import EngineRegistry, Runtime
from services.rpc.errors import AllmError, ModelInvalid, ModelNotFound, Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A model of the list. Without `runtime` it cannot be served, and `problem` says why."""

    id: str
    aliases: tuple[str, ...]
    created: int  # seconds since the epoch
    descriptor: ModelDescriptor | None
    runtime: Runtime | None
    problem: AllmError | None


class ModelStore:
    """Looks models up by id or alias."""

    def __init__(self, models: Iterable[StoredModel]) -> None:
        self._models = {model.id: model for model in models}
        self._names = {alias: model.id for model in self._models.values() for alias in model.aliases}

    def __iter__(self) -> Iterator[StoredModel]:
        """All models, by id."""
        return iter(sorted(self._models.values(), key=lambda model: model.id))

    def get(self, name: str) -> StoredModel:
        """The model of that id or alias. Raises ModelNotFound."""
        found = self._models.get(self._names.get(name, name))
        if found is None:
            raise ModelNotFound(f"The model `{name}` does not exist.", param="model")
        return found

    def serveable(self, name: str) -> tuple[ModelDescriptor, Runtime]:
        """A model that can be loaded. Raises ModelNotFound, ModelInvalid or Unsupported."""
        model = self.get(name)
        if model.descriptor is None or model.runtime is None:
            # A copy: an error that is raised again and again would keep what was on the stack each time.
            raise copy.copy(model.problem) or Unsupported(f"{model.id} cannot be served")
        return model.descriptor, model.runtime


def load_store(
    models: Iterable[tuple[str, Path]], aliases: Iterable[tuple[str, str]], registry: EngineRegistry
) -> ModelStore:
    """Describes and resolves every model of the list; one that cannot be served is kept with the reason.

    Raises:
        ModelInvalid: an id or alias is there twice, or an alias names no model.
    """
    named: dict[str, Path] = {}
    for model_id, path in models:
        if model_id in named:
            raise ModelInvalid(f"ALLM_MODELS names {model_id} twice")
        named[model_id] = path
    wanted: dict[str, str] = {}
    for alias, model_id in aliases:
        if model_id not in named:
            raise ModelInvalid(f"ALLM_ALIASES: {alias} stands for {model_id}, which is not a model")
        if alias in named or alias in wanted:
            raise ModelInvalid(f"ALLM_ALIASES: {alias} is taken already")
        wanted[alias] = model_id
    return ModelStore(_stored(model_id, path, wanted, registry) for model_id, path in named.items())


def _stored(model_id: str, path: Path, aliases: Mapping[str, str], registry: EngineRegistry) -> StoredModel:
    descriptor, runtime, problem = None, None, None
    try:
        descriptor = describe_gguf(model_id, path)
        runtime = registry.resolve(descriptor)
    except AllmError as error:
        problem = error
    own = tuple(alias for alias, target in aliases.items() if target == model_id)
    try:
        created = int(path.stat().st_mtime)
    except OSError:
        created = int(time.time())
    return StoredModel(
        id=model_id, aliases=own, created=created, descriptor=descriptor, runtime=runtime, problem=problem
    )
