"""The models of this replica: one preparation for each model that the catalog assigns to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from services.models.desired import DesiredModel
from services.models.status import State, Status
from services.provision.preparation import Means, Preparation

COMING: frozenset[State] = frozenset({"pending", "downloading", "verifying"})

log = logging.getLogger(__name__)


class ModelSet:
    """A model set in sync with the catalog. Every change may come twice, late, or after missed ones."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._models: dict[str, Preparation] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self.upheavals = 0  # grows whenever a reported status may belong to an earlier model of the same id

    def apply(self, desired: DesiredModel) -> None:
        """Applies a new or changed registration."""
        known = self._models.get(desired.id)
        if known and not _anew(known.desired, desired):
            if known.desired != desired:
                known.update(desired)
            return
        self.remove(desired.id)  # an existing model was removed and registered anew while this replica did not watch
        self._models[desired.id] = Preparation(desired, self._means, after=self._leaving.get(desired.id))

    def remove(self, model_id: str) -> None:
        """Removes a model; its running requests end first, then its memory and files go."""
        if known := self._models.pop(model_id, None):
            known.leave()
            self.upheavals += 1
            task = asyncio.create_task(self._leave(model_id, known, self._leaving.get(model_id)))
            self._leaving[model_id] = task
            log.info("model removed", extra={"model": model_id})
            self._means.changed()

    def retain(self, model_ids: Collection[str]) -> None:
        """Removes every model but these. The remaining ones may have been registered anew unnoticed."""
        self.upheavals += 1
        self._means.changed()
        for model_id in self._models.keys() - set(model_ids):
            self.remove(model_id)

    def is_warming(self) -> bool:
        """Returns whether a model that belongs in memory is not loaded yet, but may be soon."""
        wanted = (model for model in self._models.values() if model.preload or model.desired.keep_loaded)
        return any(_is_coming(model.status()) for model in wanted)

    def keep(self) -> None:
        """Loads the models that belong in memory and are not loaded."""
        for model in self._models.values():
            model.keep()

    def statuses(self) -> dict[str, Status]:
        """Returns the status of every model, by id."""
        return {model_id: model.status() for model_id, model in self._models.items()}

    async def close(self) -> None:
        """Stops all tasks; files and registrations stay."""
        leaving = list(self._leaving.values())
        for task in leaving:
            task.cancel()
        models = [model.close(forget=False) for model in self._models.values()]
        await asyncio.gather(*models, *leaving, return_exceptions=True)

    async def _leave(self, model_id: str, model: Preparation, before: asyncio.Task[None] | None) -> None:
        if before:
            await asyncio.wait([before])
        try:
            await model.close(forget=True)
        except Exception:
            log.exception("files of a removed model remain", extra={"model": model_id})
        finally:
            if self._leaving.get(model_id) is asyncio.current_task():
                del self._leaving[model_id]


def _is_coming(status: Status) -> bool:
    """Returns whether a model is not in memory yet, with no known obstacle."""
    return status.state in COMING or (status.state == "ready" and not status.reason)


def _anew(old: DesiredModel, new: DesiredModel) -> bool:
    """Returns whether the model was removed and registered again, possibly within the one-second unit of `created`."""
    same_number = new.generation == old.generation and (new.manifest, new.parts) != (old.manifest, old.parts)
    return new.created != old.created or new.generation < old.generation or same_number
