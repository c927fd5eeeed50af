"""The ledger of a host: the memory reservations of all service processes that share one ALLM_HOME.

A reservation lives as long as its owner process, which keeps its own lock file locked (ledger_file.py). The next
process to reserve drops the reservations of dead owners. Devices are stored as pools of physical memory, because two
containers may use one device name for different memory. `LedgerSync` keeps the rows of one service in sync with the
memory that its models are measured to take.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sqlite3
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from services.byte_count import bytes_word
from services.errors import Internal
from services.residency.manager import ModelManager
from services.residency.memory import ledger_file
from services.residency.memory.device_memory import DeviceMemory, read_devices
from services.residency.memory.host_memory import read_host_memory
from services.residency.memory.ledger_file import LedgerFile, OwnerFile
from services.residency.memory.memory_estimate import HOST, MemoryEstimate
from services.residency.memory.readings import Capacity, Readings, Seen
from services.residency.memory.reservation import Full, Reservation, ResidentKey
from services.residency.slot import Slot
from services.storage import DatabaseUnusable
from services.telemetry import metrics

log = logging.getLogger(__name__)

NAME = "ledger.db"


class Pools:
    """A mapping between this process's device names and pool names that all processes of a host share."""

    def __init__(self, pools: Mapping[str, str]) -> None:
        """`pools`: device -> pool. A device that is not in it has the same name everywhere."""
        self._pools = dict(pools)
        self._devices = {pool: device for device, pool in pools.items()}

    @classmethod
    def read(cls, devices: Callable[[], list[DeviceMemory]] = read_devices) -> Pools:
        """Reads the pools of this process. `devices` reads its GPUs."""
        return cls({HOST: read_host_memory().pool, **{device.name: device.pool for device in devices()}})

    def shared(self, devices: Mapping[str, int]) -> dict[str, int]:
        """Converts bytes by device to bytes by pool."""
        return {self._pools.get(device, device): count for device, count in devices.items()}

    def own(self, pools: Mapping[str, int]) -> dict[str, int]:
        """Converts bytes by pool to bytes by device; a pool that this process cannot reach keeps its name."""
        return {self._devices.get(pool, pool): count for pool, count in pools.items()}


class Ledger:
    """An open ledger, one per process. Call its methods on the event loop; SQLite runs in a thread."""

    def __init__(self, folder: Path, address: str, replica: str, pools: Pools) -> None:
        """Does not open the ledger: see `open`."""
        self._folder = folder
        self._address = address
        self._replica = replica
        self._pools = pools
        self._owner = uuid.uuid4().hex
        self._mark: OwnerFile | None = None
        self._file = LedgerFile(folder / NAME)
        self._mine: dict[str, Reservation] = {}  # as written to the file
        self._gone: set[str] = set()  # released, but possibly still in the file
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, folder: Path, address: str, replica: str, pools: Pools | None = None) -> Ledger:
        """Opens or creates the ledger in `folder`, and registers this process as an owner.

        Args:
            folder: ResidencySettings.folder.
            address: where other processes reach this process's ResidencyService (see peer_address).
            replica: this process's name, for messages.
            pools: the pools behind this process's device names; None: read from the system.

        Raises:
            DatabaseUnusable: the file or its folder cannot be used; the message names the remedy.
        """
        if pools is None:
            pools = await asyncio.to_thread(Pools.read)
        ledger = cls(folder, address, replica, pools)
        await ledger._file.open()
        try:
            ledger._mark = OwnerFile(ledger._mark_of(ledger._owner))
            await ledger._file.write(ledger._enter)
        except (OSError, Internal) as problem:
            await ledger.close()
            raise DatabaseUnusable(f"the ledger in {folder} cannot be used: {problem}") from problem
        except BaseException:
            await ledger.close()
            raise
        return ledger

    async def reserve(
        self, key: ResidentKey, estimate: MemoryEstimate, capacity: Callable[[], Capacity]
    ) -> Reservation:
        """Reserves the estimated memory of a load, or nothing.

        `capacity` reads the memory while no other process can reserve: it runs in the ledger's thread and must be
        quick. Reservations of dead owners are dropped first. `Capacity.missing` decides what fits. A cancelled call
        leaves nothing reserved. The new reservation is `loading` and `busy` until `touch` changes it.

        Raises:
            Full: it does not fit.
            Internal: the ledger cannot be used: the message names the file and the reason.
        """
        made = Reservation(
            id=uuid.uuid4().hex, address=self._address, replica=self._replica, key=key, devices=dict(estimate.devices)
        )
        work = asyncio.ensure_future(self._file.write(lambda connection: self._admit(connection, made, capacity)))
        try:
            full = await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._gone.add(made.id)
            self._later(self._forget())  # runs after `work`: the thread processes one job at a time
            raise
        if full:
            raise full
        self._mine[made.id] = made
        return made

    async def touch(self, reservations: Iterable[Reservation]) -> None:
        """Updates this process's own reservations: any field but `id`, `address` and `replica`.

        Writes only changes. Ignores reservations that were released meanwhile, and retries releases that could not be
        written. Checks nothing: if a model takes more than it reserved, the caller passes larger `devices`.

        Raises:
            Internal: the ledger cannot be used; the next touch writes everything again.
        """
        updated = {one.id: one for one in reservations if one.id in self._mine}
        if any(self._mine[one] != now for one, now in updated.items()):
            rows = [self._shared(one) for one in (self._mine | updated).values()]
            await self._file.write(lambda connection: self._put(connection, rows))
            self._mine |= {one: now for one, now in updated.items() if one in self._mine}
        await self._forget()

    async def release(self, reservation: Reservation) -> None:
        """Releases a reservation; does nothing if it is already released. Never raises: a failed write is logged, and
        the next touch retries it.
        """
        if self._mine.pop(reservation.id, None):
            self._gone.add(reservation.id)
        await self._forget()

    async def all(self) -> list[Reservation]:
        """Returns the reservations of all living owners, the least recently used first.

        Devices have this process's names; a device that it cannot reach keeps its pool's name.

        Raises:
            Internal: the ledger cannot be used.
        """
        return await self._file.read(self._living)

    async def close(self) -> None:
        """Releases all reservations, removes the owner and closes the file. Never raises."""
        await asyncio.gather(*self._tasks)
        try:
            if self._mark:
                await self._file.write(lambda connection: ledger_file.drop_owners(connection, [self._owner]))
        except Internal as problem:  # others drop the owner once its lock file is gone
            log.warning("this process could not be removed from the ledger: %s", problem)
        await self._file.close()
        if self._mark:
            self._mark.close()

    # --- in the thread

    def _enter(self, connection: sqlite3.Connection) -> None:
        self._bury(connection)
        ledger_file.add_owner(connection, self._owner, self._address, self._replica)

    def _admit(
        self, connection: sqlite3.Connection, made: Reservation, capacity: Callable[[], Capacity]
    ) -> Full | None:
        self._bury(connection)
        others = self._living(connection)
        missing = capacity().missing(made.devices, others)
        if missing:
            return Full(missing, [each for each in others if any(each.devices.get(device) for device in missing)])
        self._put(connection, [self._shared(made)])
        return None

    def _put(self, connection: sqlite3.Connection, rows: Iterable[Reservation]) -> None:
        ledger_file.add_owner(connection, self._owner, self._address, self._replica)
        ledger_file.put(connection, self._owner, rows)

    def _living(self, connection: sqlite3.Connection) -> list[Reservation]:
        rows = ledger_file.read(connection)
        lives = {owner: self._lives(owner) for owner in {owner for owner, _ in rows}}
        return [
            replace(row, devices=self._pools.own(row.devices), measured=self._pools.own(row.measured))
            for owner, row in rows
            if lives[owner]
        ]

    def _bury(self, connection: sqlite3.Connection) -> None:
        """Drops dead owners. Their lock files may go before the commit: an owner without one counts as dead, too."""
        dead = [owner for owner in ledger_file.owners(connection) if not self._lives(owner)]
        ledger_file.drop_owners(connection, dead)
        for owner in dead:
            ledger_file.remove(self._mark_of(owner))

    def _lives(self, owner: str) -> bool:
        return owner == self._owner or ledger_file.lives(self._mark_of(owner))

    def _mark_of(self, owner: str) -> Path:
        return self._folder / f"owner-{owner}.lock"

    # --- on the event loop

    def _shared(self, own: Reservation) -> Reservation:
        return replace(own, devices=self._pools.shared(own.devices), measured=self._pools.shared(own.measured))

    async def _forget(self) -> None:
        """Deletes released reservations from the file."""
        gone = set(self._gone)
        if not gone:
            return
        try:
            await self._file.write(lambda connection: ledger_file.drop(connection, gone))
        except Internal as problem:
            log.warning("a reservation could not be released yet: %s", problem)
        else:
            self._gone -= gone

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


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
            last_used=slot.order,
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
