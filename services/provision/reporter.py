"""Status reports to the catalog: immediately after every change, and regularly as a heartbeat."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

import grpc
from allm.models.v1 import model_service_pb2, model_service_pb2_grpc

from services.models import figures_wire, wire
from services.models.descriptor import FORMATS, Modality
from services.models.registry import EngineRegistry, Runtime
from services.models.status import Status
from services.provision.figure_reader import FigureReader
from services.provision.model_set import ModelSet
from services.settings.settings import ModelSettings

log = logging.getLogger(__name__)

REPORT_SECONDS = 2.0  # until the catalog sets its own interval
AWAY_SECONDS = 0.5  # between attempts while the catalog is away
TIMEOUT = 5.0
QUIET_SECONDS = 0.1  # changes within this time share one report


class Reporter:
    """The reporter of a model set's status to the catalog behind `channel`."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        modality: Modality,
        registry: EngineRegistry,
        settings: ModelSettings,
        model_set: ModelSet,
        changed: asyncio.Event,
        figures: FigureReader | None = None,
    ) -> None:
        """`changed`: set at every change; `figures`: the source of work and memory figures, None: none."""
        self._catalog = model_service_pb2_grpc.ModelServiceStub(channel)
        self._modality = modality
        self._registry = registry
        self._replica = settings.replica
        self._model_set = model_set
        self._changed = changed
        self._complete = True
        self._within = REPORT_SECONDS
        self._reported: dict[str, Status] = {}
        self._upheavals = 0
        self._figures = figures
        self._event = 0  # number of the last event that the catalog has received

    async def report(self) -> None:
        """Reports until it is cancelled, then reports that the replica leaves."""
        try:
            while True:
                self._changed.clear()
                wait = self._within if await self._try() else AWAY_SECONDS
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):  # wait_for loses a cancellation that comes with a change
                        await self._changed.wait()
                    await asyncio.sleep(QUIET_SECONDS)
        finally:
            await self._leave()

    async def _try(self) -> bool:
        """Loads models that belong in memory, and reports. Catches everything: a bug must not silence this replica."""
        try:
            self._model_set.keep()
            return await self._send()
        except Exception:
            log.exception("cannot report")
            self._complete = True
            return False

    async def _send(self) -> bool:
        """Sends one report; returns whether the catalog took it."""
        if self._upheavals != self._model_set.upheavals:  # the catalog has forgotten these models' statuses
            self._upheavals, self._complete = self._model_set.upheavals, True
        statuses = self._model_set.statuses()
        updates = statuses if self._complete else {k: v for k, v in statuses.items() if self._reported.get(k) != v}
        request = model_service_pb2.ReportModelStatusRequest(
            replica=self._replica,
            modality=wire.MODALITIES[self._modality],
            complete=self._complete,
            statuses=[
                model_service_pb2.ModelStatus(id=model_id, status=wire.status_message(self._replica, status))
                for model_id, status in updates.items()
            ],
        )
        if self._complete:
            request.device = self._registry.device
            request.device_forced = self._registry.forced
            request.runtimes.extend(offer for runtime in self._registry.runtimes for offer in _offers(runtime))
        self._add_figures(request)
        try:
            reply = await self._catalog.ReportModelStatus(request, timeout=TIMEOUT)
        except grpc.aio.AioRpcError as error:
            log.debug("the catalog did not accept a report", extra={"code": error.code().name})
            self._complete = True
            return False
        self._reported = statuses
        self._event = max([self._event, *(one.number for one in request.figures.events)])
        # Models removed since were in no report: the catalog forgets them with their registration.
        self._complete = reply.send_complete
        if seconds := reply.report_within.ToMilliseconds() / 1000:
            self._within = seconds
        if self._complete:
            self._changed.set()
        return True

    def _add_figures(self, request: model_service_pb2.ReportModelStatusRequest) -> None:
        """Adds the figures. On any error stops sending them, because models are more important."""
        if self._figures is None:
            return
        try:
            request.figures.CopyFrom(figures_wire.figures_message(self._figures.read(self._event)))
        except Exception:
            log.exception("cannot report the figures of this replica")
            self._figures = None

    async def _leave(self) -> None:
        request = model_service_pb2.ReportModelStatusRequest(
            replica=self._replica, modality=wire.MODALITIES[self._modality], leaving=True
        )
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self._catalog.ReportModelStatus(request, timeout=1.0)


def _offers(runtime: Runtime) -> Iterator[model_service_pb2.RuntimeOffer]:
    """Yields one offer per capability, because the architectures differ."""
    for capability, architectures in runtime.architectures.items():
        yield model_service_pb2.RuntimeOffer(
            name=runtime.name,
            formats=[wire.FORMATS[known] for known in FORMATS if known in runtime.formats],
            architectures=sorted(architectures),
            capabilities=[capability],
            devices=sorted(runtime.devices),
            quantizations=sorted(runtime.quantizations),
            missing=runtime.missing,
            device=runtime.device,
            device_missing=runtime.lacking,
            pipelines=runtime.pipelines,
        )
