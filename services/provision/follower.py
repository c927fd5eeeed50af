"""The follower of the catalog, and the set of models that it keeps: one preparation for each registration here.

It applies registrations of this modality for as long as the service runs. While the catalog is away, the service
continues with what it knows.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Collection

import grpc
from allm.models.v1 import manifest_pb2, model_service_pb2, model_service_pb2_grpc

from services.errors import AllmError, ModelNotFound, ModelNotReady, Unsupported
from services.models import wire
from services.models.descriptor import Modality
from services.models.desired import DesiredModel
from services.models.status import State, Status
from services.models.store import ModelStore
from services.provision.preparation import Means, ModelPreparation
from services.settings.model_groups import GroupShare

log = logging.getLogger(__name__)

PAUSE = 0.2  # seconds before the next connection to the catalog; doubled each time
LONGEST_PAUSE = 2.0
ASK_SECONDS = 1.0  # how long a request for an unknown model may wait for the catalog
MAX_ASKING = 64
SETTLE_SECONDS = 6.0  # how long replicas have to report to a restarted catalog
COMING: frozenset[State] = frozenset({"pending", "downloading", "verifying"})


class ModelSet:
    """A model set in sync with the catalog. Every change may come twice, late, or after missed ones."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._models: dict[str, ModelPreparation] = {}
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
        self._models[desired.id] = ModelPreparation(desired, self._means, after=self._leaving.get(desired.id))

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

    async def _leave(self, model_id: str, model: ModelPreparation, before: asyncio.Task[None] | None) -> None:
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


class Follower:
    """The follower of the catalog behind `channel`: keeps a model set in sync with it."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        modality: Modality,
        model_set: ModelSet,
        store: ModelStore,
        share: GroupShare | None = None,
    ) -> None:
        """`share`: the models that this service serves; None: all."""
        self._catalog = model_service_pb2_grpc.ModelServiceStub(channel)
        self._modality = modality
        self._model_set = model_set
        self._store = store
        self._share = share or GroupShare()
        self._asking = 0
        self._unsettled: dict[str, DesiredModel] | None = None  # registrations as received, while a catalog may be new
        self.synced = asyncio.Event()  # set once all registrations have been received
        self.updated = asyncio.Event()  # set at every message; the waiter clears it

    async def follow(self) -> None:
        """Follows until it is cancelled."""
        pause = PAUSE
        while True:
            try:
                await self._watch()
                pause = PAUSE
            except grpc.aio.AioRpcError as error:
                log.warning("the catalog is unavailable", extra={"code": error.code().name, "details": error.details()})
            except Exception:
                log.exception("cannot follow the catalog")
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def ask(self, name: str) -> None:
        """Asks the catalog for a model that is unknown here; waits a moment for its registration to arrive.

        Raises:
            ModelNotReady: the catalog does not answer, or the registration has not arrived.
            ModelNotFound, Unsupported: the model does not exist, or has another modality.
        """
        if self._asking >= MAX_ASKING:
            raise ModelNotReady(f"The model `{name}` is not known here, and the catalog is busy.")
        self._asking += 1
        try:
            request = model_service_pb2.GetModelRequest(id=name)
            reply = await self._catalog.GetModel(request, timeout=ASK_SECONDS)
            modality = wire.word(wire.MODALITIES, reply.model.modality)
            if modality != self._modality:
                offered = ", ".join(sorted(reply.model.capabilities)) or modality
                raise Unsupported(f"The model `{name}` is for {offered}, not for {self._modality}.", param="model")
            if not self._share.holds(names := (reply.model.id, *reply.model.aliases)):
                raise ModelNotFound(self._share.elsewhere(name, names), param="model")
            await self._arrival(name)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
                raise ModelNotFound(f"The model `{name}` does not exist.", param="model") from None
            raise ModelNotReady(f"The model `{name}` is not known here, and the catalog cannot be asked.") from None
        finally:
            self._asking -= 1

    async def _arrival(self, name: str) -> None:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                while name not in self._store:
                    self.updated.clear()
                    await self.updated.wait()
        except TimeoutError:
            raise ModelNotReady(f"The model `{name}` is registered; its service has not received it yet.") from None

    async def _watch(self) -> None:
        self._unsettled = {}
        settling = asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._settle)
        try:
            await self._hear()
        finally:
            settling.cancel()

    async def _hear(self) -> None:
        seen: set[str] = set()
        request = model_service_pb2.WatchModelsRequest(modality=wire.MODALITIES[self._modality])
        async for message in self._catalog.WatchModels(request):
            event = message.WhichOneof("event")
            if event == "changed" and not self._share.holds(_names(message.changed)):
                self._forget(message.changed.model.id, seen)
            elif event == "changed":
                seen.add(message.changed.model.id)
                self._apply(message.changed)
            elif event == "removed_id":
                self._forget(message.removed_id, seen)
            elif event == "synced":
                self._model_set.retain(seen)
                self.synced.set()
            self.updated.set()

    def _forget(self, model_id: str, seen: set[str]) -> None:
        seen.discard(model_id)
        if self._unsettled is not None:
            self._unsettled.pop(model_id, None)
        self._model_set.remove(model_id)

    def _apply(self, message: manifest_pb2.DesiredModel) -> None:
        try:
            desired = wire.read_desired(message)
            if desired.id in self._store and self._unsettled is not None:
                # A restarted catalog does not know the other replicas yet, though they still serve.
                self._unsettled[desired.id] = desired
                known = self._store.get(desired.id).desired.ready_replicas
                desired = dataclasses.replace(desired, ready_replicas=desired.ready_replicas | known)
            self._model_set.apply(desired)
        except AllmError as error:  # a catalog of another version; other models are unaffected
            log.warning("a registration cannot be read", extra={"model": message.model.id, "reason": error.message})

    def _settle(self) -> None:
        """Applies registrations as received: replicas that have not reported to the catalog by now are gone."""
        unsettled, self._unsettled = self._unsettled or {}, None
        for desired in unsettled.values():
            self._model_set.apply(desired)


def _names(message: manifest_pb2.DesiredModel) -> tuple[str, ...]:
    return message.model.id, *message.model.aliases
