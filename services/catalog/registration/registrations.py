"""All registered models: changes go to disk first and then become visible; lookups use memory only."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from services.catalog import metrics
from services.catalog.database import Database, WholeChanges
from services.catalog.registration import registration
from services.catalog.registration.registration import NameTaken, Registration
from services.errors import InvalidRequest, ModelExists, ModelNotFound
from services.models.desired import DesiredModel
from services.models.registry import Measurement

T = TypeVar("T")

MAX_MODELS = 10_000  # the most that a replica's report may hold


class Registrations:
    """The table of models, with a copy in memory. `on_change` receives the id of each changed model."""

    def __init__(self, database: Database, found: list[Registration]) -> None:
        self.on_change: Callable[[str], None] = lambda _: None
        self._database = database
        self._changes = WholeChanges()
        self._models = {one.id: one for one in found}
        self._ids = {name: one.id for one in found for name in one.names}
        metrics.REGISTRATIONS.set(len(self._models))

    @classmethod
    async def load(cls, database: Database) -> Registrations:
        """Reads all models. Raises ModelInvalid if one cannot be read."""
        return cls(database, await database.read(registration.read_all))

    def __len__(self) -> int:
        return len(self._models)

    def __iter__(self) -> Iterator[Registration]:
        """All models, by id."""
        return iter([self._models[model_id] for model_id in sorted(self._models)])

    def find(self, model_id: str) -> Registration | None:
        """Returns the model with that id, not alias; None if there is none."""
        return self._models.get(model_id)

    def get(self, name: str) -> Registration:
        """Returns the model with that id or alias. Raises ModelNotFound."""
        found = self._ids.get(name)
        if found is None:
            raise ModelNotFound(f"The model `{name}` does not exist.", param="model")
        return self._models[found]

    def check_free(self, model_id: str, aliases: tuple[str, ...]) -> None:
        """Checks that no other model has the names of a new one. Raises ModelExists."""
        for name in (model_id, *aliases):
            if holder := self._ids.get(name):
                raise self._taken(name, holder, model_id)

    def check_aliases_free(self, model_id: str, aliases: tuple[str, ...]) -> None:
        """Checks that no other model has a model's new aliases. Raises ModelExists."""
        for name in aliases:
            if (holder := self._ids.get(name, model_id)) != model_id:
                raise self._taken(name, holder, model_id)

    async def add(self, desired: DesiredModel, fingerprint: str, declared: str = "") -> Registration:
        """Registers a model; `declared` is its models file entry.

        Raises:
            ModelExists: its id or an alias is taken; nothing has changed.
            InvalidRequest: there are too many models.
        """

        async def work() -> Registration:
            self.check_free(desired.id, desired.aliases)
            if len(self) >= MAX_MODELS:
                raise InvalidRequest(f"{MAX_MODELS} models are registered, which is the limit: delete some first")
            new = Registration(serial=0, desired=desired, fingerprint=fingerprint, declared=declared)
            serial = await self._write(desired.id, lambda connection: registration.insert(connection, new))
            new = replace(new, serial=serial)
            self._show(None, new)
            return new

        return await self._changes.run(work)

    async def change(self, found: Registration, change: Callable[[Registration], Registration]) -> Registration:
        """Applies `change` to a model's current registration; writes nothing if the result is equal.

        Raises:
            ModelNotFound: the model no longer exists.
            ModelExists: one of its new aliases is taken; nothing has changed.
        """

        async def work() -> Registration:
            old = self._now(found)
            new = change(old)
            if new == old:
                return old
            self.check_aliases_free(old.id, new.desired.aliases)
            await self._write(old.id, lambda connection: registration.update(connection, new))
            self._show(old, new)
            return new

        return await self._changes.run(work)

    async def record(self, found: Registration, measurement: Measurement) -> Registration:
        """Stores a measurement with the current time. Raises ModelNotFound."""
        return await self.change(found, lambda old: old.with_measurement(measurement, int(time.time())))

    async def remove(self, found: Registration) -> None:
        """Deletes a model. Raises ModelNotFound."""

        async def work() -> None:
            old = self._now(found)
            await self._write(old.id, lambda connection: registration.delete(connection, old.serial))
            self._show(old, None)

        await self._changes.run(work)

    async def close(self) -> None:
        """Waits for pending writes."""
        await self._changes.close()

    async def _write(self, model_id: str, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._database.write(work)
        except NameTaken as error:  # memory did not know: another process wrote to the file
            raise self._taken(error.name, error.holder, model_id) from error

    def _show(self, old: Registration | None, new: Registration | None) -> None:
        for name in old.names if old else ():
            del self._ids[name]
        if old:
            del self._models[old.id]
        if new:
            self._models[new.id] = new
            self._ids |= dict.fromkeys(new.names, new.id)
        metrics.REGISTRATIONS.set(len(self._models))
        changed = new or old
        if changed:
            self.on_change(changed.id)

    def _now(self, found: Registration) -> Registration:
        """Returns a model's current registration. A new model with the same id does not count as the same."""
        now = self._models.get(found.id)
        if now is None or now.serial != found.serial:
            raise ModelNotFound(f"The model `{found.id}` does not exist: it was deleted a moment ago.", param="model")
        return now

    def _taken(self, name: str, holder: str, wanted_by: str) -> ModelExists:
        what = f"a model {name!r} is registered already"
        if name != holder:
            what = f"the name {name!r} is an alias of the model {holder!r}"
        if found := self._models.get(holder):
            what += f" ({found.desired.facts.format}, from {found.desired.source})"
        return ModelExists(f"{what}; nothing was changed", param="id" if name == wanted_by else "aliases")
