"""Synchronisation of the ledger with the measured memory of this service's models."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from itertools import chain
from typing import Any

from services.byte_count import bytes_word
from services.residency.manager import ModelManager
from services.residency.memory.ledger import Ledger
from services.residency.memory.memory_estimate import HOST
from services.residency.memory.readings import Readings, Seen
from services.residency.memory.reservation import Reservation
from services.residency.slot import Slot
from services.telemetry import metrics

log = logging.getLogger(__name__)

TOLERANCE = 1.15  # of the reservation: the accuracy of the estimates


class LedgerSync:
    """The synchronisation of one service's rows in the ledger."""

    def __init__(self, manager: ModelManager[Any], ledger: Ledger, readings: Readings) -> None:
        self._manager = manager
        self._ledger = ledger
        self._readings = readings
        self._overrun: set[str] = set()  # reservations whose overrun was logged

    async def update(self) -> Seen:
        """Reads memory and updates the ledger. Until then, memory that a model has just taken counts twice: as used,
        and as reserved.

        Raises Internal when the ledger cannot be used.
        """
        slots = [slot for slot in self._manager.slots() if slot.reservation]
        pids = {slot: list(slot.pids) for slot in slots}
        seen = await asyncio.to_thread(self._readings.read, list(chain.from_iterable(pids.values())))
        for slot, of_slot in pids.items():
            self._measure(slot, seen, of_slot)
        rows = self.rows()
        self._overrun &= {row.id for row in rows}
        await self._ledger.touch(rows)
        return seen

    def rows(self) -> list[Reservation]:
        """Returns all reservations of this service in their current state."""
        return [row for slot in self._manager.slots() if (row := self.row(slot))]

    def row(self, slot: Slot[Any]) -> Reservation | None:
        """Returns a slot's reservation in its current state; None if it has none."""
        if slot.reservation is None:
            return None
        current = self._manager.slot(slot.key) is slot
        return dataclasses.replace(
            slot.reservation,
            loading=slot.loading,
            busy=slot.busy or not current,  # being unloaded: nobody needs to ask for it
            pinned=current and self._manager.pinned(slot.key.model_id),
            last_used=slot.last_used,
        )

    def _measure(self, slot: Slot[Any], seen: Seen, pids: list[int]) -> None:
        """Records a worker's memory, and raises its reservation to that if it takes more."""
        reservation, workers = slot.reservation, [seen.workers[pid] for pid in pids if pid in seen.workers]
        slot.memory = sum(worker.total for worker in workers)
        if reservation is None:
            return
        reserved = reservation.devices
        live = [device for device in seen.devices if device.live]  # in the others' figures no worker is counted
        gpus = {device.name: sum(device.processes.get(pid, 0) for pid in pids) for device in live}
        # In a container NVML does not report the owning process: assume that the whole reservation is in use.
        claimed = {} if slot.loading else reserved
        gpus = {name: count or claimed.get(name, 0) for name, count in gpus.items()}
        gpus = {name: count for name, count in gpus.items() if count}
        taken = {HOST: slot.memory, **gpus}
        devices = {name: max(reserved.get(name, 0), taken.get(name, 0)) for name in reserved.keys() | taken.keys()}
        if any(taken[device] > reserved.get(device, 0) * TOLERANCE for device in taken):
            self._log_overrun(slot, sum(reserved.values()), sum(devices.values()), reservation.id)
        held = sum(worker.held for worker in workers)
        slot.reservation = dataclasses.replace(reservation, devices=devices, measured={HOST: held, **gpus})

    def _log_overrun(self, slot: Slot[Any], reserved: int, taken: int, reservation: str) -> None:
        """Logs and counts an overrun, once per load."""
        if reservation in self._overrun:
            return
        self._overrun.add(reservation)
        metrics.OVERRUNS.labels(slot.key.model_id).inc()
        extra = {"model": slot.key.model_id, "reserved": bytes_word(reserved), "taken": bytes_word(taken)}
        log.warning("a model takes more memory than was reserved for it", extra=extra)
