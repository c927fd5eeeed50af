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
from services.telemetry.figures import EVENTS, DeviceFigures, Figures, HostFigures, Latencies, ModelEvents

log = logging.getLogger(__name__)

REPORT_SECONDS = 2.0  # until the catalog sets its own interval
AWAY_SECONDS = 0.5  # between attempts while the catalog is away
TIMEOUT = 5.0
QUIET_SECONDS = 0.1  # changes within this time share one report
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_COUNTERS: dict[figures.Counter, Counter] = {
    "generated_tokens": metrics.GENERATED_TOKENS,
    "prompt_tokens": metrics.PROMPT_TOKENS,
    "draft_tokens": metrics.DRAFT_TOKENS,
    "accepted_tokens": metrics.ACCEPTED_TOKENS,
    "audio_seconds": metrics.AUDIO_SECONDS,
    "images": metrics.IMAGES,
}
_FIRST: dict[Modality, Histogram] = {
    "text": metrics.FIRST_TOKEN,
    "audio": metrics.FIRST_SEGMENT,
    "image": metrics.FIRST_IMAGE,
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


def total(metric: Counter | Gauge) -> float | None:
    """Returns the sum of all series; None if there is none yet. `collect` would take much longer."""
    series: list[Any] = list(metric._metrics.values())
    return sum(each._value.get() for each in series) if series else None


def buckets(metric: Histogram, **labels: str) -> tuple[tuple[float, ...], tuple[int, ...]] | None:
    """Returns the buckets' upper bounds without the last, and their counts, over all series with these labels.

    None if no such series exists yet.
    """
    places = [(metric._labelnames.index(name), value) for name, value in labels.items()]
    series: list[Any] = [
        child
        for values, child in list(metric._metrics.items())
        if all(values[place] == value for place, value in places)
    ]
    if not series:
        return None
    counts = zip(*([bucket.get() for bucket in child._buckets] for child in series), strict=True)
    return tuple(metric._upper_bounds[:-1]), tuple(int(sum(of_all)) for of_all in counts)


class FigureReader:
    """The reader of a service's figures. `modality`: the service's modality."""

    def __init__(
        self,
        modality: Modality,
        snapshot: Callable[[], MemorySnapshot],
        threshold: float,
        events: ModelEvents = EVENTS,
        boot: Path = _BOOT,
    ) -> None:
        """`snapshot`: returns the last reading of memory; `threshold`: ResidencySettings.threshold; `boot`: a file that
        is the same in all containers of a machine, and different on every machine.
        """
        self._first = _FIRST[modality]
        self._snapshot = snapshot
        self._threshold = threshold
        self._events = events
        self._began = time.time_ns()
        self._clock = time.monotonic()
        self._name = socket.gethostname()
        self._machine = boot.read_text().strip() if boot.exists() else self._name

    def read(self, after: int = 0) -> Figures:
        """Returns all current figures, and the events after number `after`."""
        counters = {name: value for name, metric in _COUNTERS.items() if (value := total(metric)) is not None}
        times: dict[figures.Times, tuple[tuple[float, ...], tuple[int, ...]] | None] = {
            "first_output": buckets(self._first),
            "output_token": buckets(metrics.PER_TOKEN),
            "request": buckets(metrics.SERVER_DURATION, error_type=""),
        }
        return Figures(
            began=self._began,
            uptime=time.monotonic() - self._clock,
            running=int(total(metrics.RUNNING) or 0),
            waiting=int(total(metrics.WAITING) or 0),
            counters=counters,
            times={name: Latencies(*found) for name, found in times.items() if found},
            host=self._host(),
            events=self._events.after(after),
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
