"""The memory monitor: once a second it reads memory, updates the ledger and the metrics, and unloads models.

Above the threshold the least recently used idle model of the host goes first, whichever service holds it. Each monitor
unloads only its own models and waits for a neighbour whose turn it is, so that they do not all unload together. While
every model is in use, nothing can be unloaded, and admission stops.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from services.byte_count import bytes_word
from services.errors import AllmError
from services.residency.manager import ModelManager
from services.residency.memory.admission import Admission
from services.residency.memory.device_memory import DeviceMemory
from services.residency.memory.ledger import Ledger, LedgerSync
from services.residency.memory.memory_estimate import budget_of, device_word, share_of
from services.residency.memory.readings import MemorySnapshot, Readings, Seen
from services.residency.memory.reservation import Reservation
from services.settings.settings import ResidencySettings
from services.telemetry import metrics

log = logging.getLogger(__name__)

INTERVAL = 1.0  # seconds between two readings
NEIGHBOUR_SECONDS = 5.0  # a neighbour that has not unloaded its model by then is skipped
PERCENT = 100


class Monitor:
    """The monitor of one service. `monotonic`: monotonic seconds."""

    def __init__(
        self,
        manager: ModelManager[Any],
        ledger: Ledger,
        ledger_sync: LedgerSync,
        admission: Admission,
        settings: ResidencySettings,
        readings: Readings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._ledger = ledger
        self._ledger_sync = ledger_sync
        self._admission = admission
        self._settings = settings
        self._readings = readings
        self._monotonic = monotonic
        self._pressed: dict[str, str] = {}  # devices over their limit at the last reading -> the reason
        self._awaited: dict[str, float] = {}  # neighbours' reservations that should be unloaded -> since when
        self._measured: set[str] = set()  # models that have a metric
        self._trouble = ""  # the ledger's problem that was last logged
        seen = readings.read()
        self.snapshot = MemorySnapshot(seen.host, seen.devices, ())  # of the last reading

    async def run(self) -> None:
        """Monitors until it is cancelled. Unloads in a separate task, because a worker may be slow to end."""
        acting: asyncio.Task[None] | None = None
        try:
            while True:
                await self._look_guarded()
                if acting is None or acting.done():
                    acting = asyncio.create_task(self._act_guarded())
                await asyncio.sleep(INTERVAL)
        finally:
            if acting:
                acting.cancel()
                await asyncio.gather(acting, return_exceptions=True)

    async def look(self) -> None:
        """Reads everything, and updates the ledger and the metrics. Raises Internal when the ledger cannot be used."""
        self._manager.sweep()
        seen = await self._ledger_sync.update()
        rows = tuple(self._ledger_sync.rows())
        seen = replace(seen, devices=tuple(_with_reserved(device, rows) for device in seen.devices))
        self.snapshot = MemorySnapshot(seen.host, seen.devices, rows)
        self._measure(seen)

    async def act(self) -> None:
        """Unloads models that were idle for too long or exceed their limit, and relieves devices over their limit."""
        for slot in self._manager.slots():
            if not slot.busy and 0 < slot.idle_limit(self._settings.idle_seconds) <= slot.idle_seconds:
                await self._manager.evict(slot.key, "idle")
            elif slot.reservation and 0 < self._settings.model_bytes < sum(slot.reservation.devices.values()):
                await self._manager.evict(slot.key, "budget")
        await self._relieve()

    async def _look_guarded(self) -> None:
        try:
            await self.look()
        except AllmError as problem:  # the ledger: an operator must fix it, but one log line is enough
            if problem.message != self._trouble:
                log.error("cannot update the ledger", extra={"reason": problem.message})  # noqa: TRY400
            self._trouble = problem.message
        except Exception:
            log.exception("cannot read the use of memory")
        else:
            self._trouble = ""

    async def _act_guarded(self) -> None:
        try:
            await self.act()
        except AllmError as problem:
            log.debug("cannot keep memory within its limits", extra={"reason": problem.message})
        except Exception:
            log.exception("cannot keep memory within its limits")

    # --- pressure

    async def _relieve(self) -> None:
        """Unloads one model at a time until no device is over its limit, a neighbour is next, or none is idle."""
        while True:
            rows = await self._ledger.all()
            own = {row.id: row for row in self._ledger_sync.rows()}
            holders = [own.get(row.id, row) for row in rows]
            pressed = await self._pressure(holders)
            self._report_pressure(pressed)
            holders = [one for one in holders if any(one.devices.get(device) for device in pressed)]
            idle = [one for one in sorted(holders, key=lambda one: one.last_used) if one.idle]
            relief = {device for one in idle for device, count in one.devices.items() if count}
            self._admission.stopped = {device: why for device, why in pressed.items() if device not in relief}
            self._awaited = {one.id: self._awaited[one.id] for one in idle if one.id in self._awaited}
            if not await self._unload_first(idle):
                return

    async def _unload_first(self, idle: list[Reservation]) -> bool:
        """Returns whether a model of this service was unloaded, so that the pressure must be computed again."""
        own = {slot.reservation.id: slot for slot in self._manager.slots() if slot.reservation}
        for one in idle:
            if slot := own.get(one.id):
                return await self._manager.evict(slot.key, "pressure") is not None
            since = self._awaited.setdefault(one.id, self._monotonic())
            if self._monotonic() - since < NEIGHBOUR_SECONDS:
                return False  # its own monitor runs every second, too
        return False

    async def _pressure(self, holders: list[Reservation]) -> dict[str, str]:
        """Returns the devices over their limit, each with a reason."""
        seen = await asyncio.to_thread(self._readings.read)
        found = {}
        static = {device.name for device in seen.devices if not device.live}  # unloading would not change their figures
        for device, (total, used) in seen.totals().items():
            reserved = sum(one.devices.get(device, 0) for one in holders)
            budget, _ = budget_of(device, self._settings)
            of = f"of {device_word(device)}"
            most = share_of(device, self._settings.threshold)
            if used > total * most and device not in static:
                share = f"{most * PERCENT:.0f} %"
                found[device] = f"{bytes_word(used)} {of} are used, which is over {share} of {bytes_word(total)}"
            elif 0 < budget < reserved:
                found[device] = (
                    f"{bytes_word(reserved)} {of} are used by models, which is over the budget of {bytes_word(budget)}"
                )
        return found

    def _report_pressure(self, pressed: dict[str, str]) -> None:
        """Logs when a device goes over its limit, and when it no longer is."""
        for device in pressed.keys() - self._pressed.keys():
            log.warning("memory is short", extra={"place": device, "why": pressed[device]})
        for device in self._pressed.keys() - pressed.keys():
            log.info("memory is no longer short", extra={"place": device})
        for device in pressed.keys() | self._pressed.keys():
            metrics.MEMORY_PRESSURE.labels(device).set(device in pressed)
        self._pressed = pressed

    # --- metrics

    def _measure(self, seen: Seen) -> None:
        loaded = {slot.key.model_id: slot for slot in self._manager.slots() if slot.resident}
        pids = {resident.pid for slot in loaded.values() if (resident := slot.resident)}
        metrics.HOST_MEMORY.labels("total").set(seen.host.total)
        metrics.HOST_MEMORY.labels("used").set(seen.host.used)
        metrics.HOST_MEMORY.labels("threshold").set(seen.host.total * self._settings.threshold)
        for device in seen.devices:
            metrics.DEVICE_MEMORY.labels(device.name, "total").set(device.total)
            metrics.DEVICE_MEMORY.labels(device.name, "used").set(device.used)
            most = share_of(device.name, self._settings.threshold)
            metrics.DEVICE_MEMORY.labels(device.name, "threshold").set(device.total * most)
            ours = sum(count for pid, count in device.processes.items() if pid in pids)
            metrics.DEVICE_MEMORY.labels(device.name, "ours").set(ours)
        for model_id, slot in loaded.items():
            metrics.WORKER_MEMORY.labels(model_id).set(slot.memory)
            for device in seen.devices:
                count = sum(device.processes.get(pid, 0) for pid in slot.pids)
                metrics.WORKER_DEVICE_MEMORY.labels(device.name, model_id).set(count)
        for model_id in self._measured - loaded.keys():
            for metric in (metrics.WORKER_MEMORY, metrics.WORKER_DEVICE_MEMORY):
                metric.remove_by_labels({"model": model_id})
        self._measured = set(loaded)


def _with_reserved(device: DeviceMemory, rows: Iterable[Reservation]) -> DeviceMemory:
    """Adds this service's reservations to figures that do not contain what workers take."""
    if device.live:
        return device
    reserved = sum(row.devices.get(device.name, 0) for row in rows)
    return replace(device, used=min(device.total, device.used + reserved))
