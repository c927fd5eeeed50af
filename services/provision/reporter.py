"""Reports to the catalog: the status of models, after every change and as a heartbeat, and the replica's figures.

The figures of work and memory are read from the replica's own metrics and its monitor's last snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from allm.models.v1 import model_service_pb2, model_service_pb2_grpc
from prometheus_client import Counter, Gauge, Histogram

from services.models import figures_wire, wire
from services.models.descriptor import FORMATS, Modality
from services.models.runtime_choice import EngineRegistry
from services.models.runtimes import RuntimeSpec
from services.models.status import Status
from services.provision.follower import ModelSet
from services.residency.memory.readings import MemorySnapshot
from services.settings.settings import ModelSettings
from services.telemetry import figures, metrics
from services.telemetry.figures import (
    EVENTS,
    LATENCIES,
    DeviceFigures,
    Figures,
    HostFigures,
    ModelEvents,
    ModelFigures,
    ModelLatencies,
)

log = logging.getLogger(__name__)

REPORT_SECONDS = 2.0  # until the catalog sets its own interval
AWAY_SECONDS = 0.5  # between attempts while the catalog is away
TIMEOUT = 5.0
QUIET_SECONDS = 0.1  # changes within this time share one report
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_COUNTERS: dict[figures.Counter, Counter | Histogram] = {
    "requests": metrics.SERVER_DURATION,
    "generated_tokens": metrics.GENERATED_TOKENS,
    "prompt_tokens": metrics.PROMPT_TOKENS,
    "draft_tokens": metrics.DRAFT_TOKENS,
    "accepted_tokens": metrics.ACCEPTED_TOKENS,
    "audio_seconds": metrics.AUDIO_SECONDS,
    "images": metrics.IMAGES,
}


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
        self._event = 0  # number of the last event that the catalog has received; so is the next
        self._latency = 0

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
            own = (one for one in self._registry.runtimes if one.modality == self._modality)  # none for other models
            request.runtimes.extend(offer for runtime in own for offer in _offers(runtime))
        self._add_figures(request)
        try:
            reply = await self._catalog.ReportModelStatus(request, timeout=TIMEOUT)
        except grpc.aio.AioRpcError as error:
            log.debug("the catalog did not accept a report", extra={"code": error.code().name})
            self._complete = True
            return False
        self._reported = statuses
        self._event = max([self._event, *(one.number for one in request.figures.events)])
        self._latency = max([self._latency, *(one.number for one in request.figures.latencies)])
        # Models removed since were in no report: the catalog forgets them with their registration.
        self._complete = reply.send_complete
        if seconds := reply.report_within.ToMilliseconds() / 1000:
            self._within = seconds
        if self._complete:
            self._changed.set()
        return True

    def _add_figures(self, request: model_service_pb2.ReportModelStatusRequest) -> None:
        """Adds the figures. On any error stops sending them, because models are more important.

        A catalog that knows nothing of this replica gets the latencies of the whole last minute: it may have restarted.
        """
        if self._figures is None:
            return
        try:
            read = self._figures.read(self._event, 0 if self._complete else self._latency)
            request.figures.CopyFrom(figures_wire.figures_message(read))
        except Exception:
            log.exception("cannot report the figures of this replica")
            self._figures = None

    async def _leave(self) -> None:
        request = model_service_pb2.ReportModelStatusRequest(
            replica=self._replica, modality=wire.MODALITIES[self._modality], leaving=True
        )
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self._catalog.ReportModelStatus(request, timeout=1.0)


def _offers(runtime: RuntimeSpec) -> Iterator[model_service_pb2.RuntimeOffer]:
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


def by_model(metric: Counter | Gauge | Histogram) -> dict[str, float]:
    """Returns each model's sum over its series, of a histogram its number of values. `collect` would be much slower."""
    place = metric._labelnames.index("model")
    found: dict[str, float] = {}
    series: list[tuple[Any, Any]] = list(metric._metrics.items())
    for labels, child in series:
        parts = child._buckets if isinstance(metric, Histogram) else (child._value,)
        found[labels[place]] = found.get(labels[place], 0.0) + sum(part.get() for part in parts)
    return found


class FigureReader:
    """The reader of a service's figures."""

    def __init__(
        self,
        snapshot: Callable[[], MemorySnapshot],
        threshold: float,
        events: ModelEvents = EVENTS,
        latencies: ModelLatencies = LATENCIES,
        boot: Path = _BOOT,
    ) -> None:
        """`snapshot`: returns the last reading of memory; `threshold`: ResidencySettings.threshold; `boot`: a file that
        is the same in all containers of a machine, and different on every machine.
        """
        self._snapshot = snapshot
        self._threshold = threshold
        self._events = events
        self._latencies = latencies
        self._began = time.time_ns()
        self._clock = time.monotonic()
        self._name = socket.gethostname()
        self._machine = boot.read_text().strip() if boot.exists() else self._name

    def read(self, event: int = 0, latency: int = 0) -> Figures:
        """Returns all current figures, and the events and latencies after these numbers."""
        counters = {name: found for name, metric in _COUNTERS.items() if (found := by_model(metric))}
        running, waiting = by_model(metrics.RUNNING), by_model(metrics.WAITING)
        models = {model for found in (running, waiting, *counters.values()) for model in found if model}
        return Figures(
            began=self._began,
            uptime=time.monotonic() - self._clock,
            running=int(sum(running.values())),
            waiting=int(sum(waiting.values())),
            counters={name: sum(found.values()) for name, found in counters.items()},
            models={
                model: ModelFigures(
                    running=int(running.get(model, 0)),
                    waiting=int(waiting.get(model, 0)),
                    counters={name: found[model] for name, found in counters.items() if model in found},
                )
                for model in sorted(models)
            },
            latencies=self._latencies.after(latency),
            events=self._events.after(event),
            host=self._host(),
        )

    def _host(self) -> HostFigures:
        seen = self._snapshot()
        return HostFigures(
            id=f"{self._machine}/{seen.host.pool}",
            name=self._name,
            total=seen.host.total,
            used=seen.host.used,
            threshold=self._threshold,
            devices=tuple(
                DeviceFigures(id=f"{self._machine}/{each.pool}", name=each.name, total=each.total, used=each.used)
                for each in seen.devices
            ),
        )
