"""The memory management of a service: ledger, admission and monitor around its manager."""

from __future__ import annotations

import asyncio
from typing import Any

from services.residency.manager import ModelManager
from services.residency.memory.admission import Admission, Needed
from services.residency.memory.device_memory import VulkanMemory
from services.residency.memory.ledger import Ledger, LedgerSync, Pools
from services.residency.memory.monitor import Monitor
from services.residency.memory.peer import peer_address
from services.residency.memory.readings import MemorySnapshot, Readings
from services.residency.memory.reservation import ResidentKey
from services.rpc.channel import NOBODY, OwnIdentity
from services.settings.settings import Settings


class Residency:
    """The memory of a service's models, and the source of ResidencyService's answers."""

    def __init__(self, manager: ModelManager[Any], ledger: Ledger, monitor: Monitor) -> None:
        self._manager = manager
        self._ledger = ledger
        self._monitor = monitor
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        settings: Settings,
        manager: ModelManager[Any],
        needed: Needed,
        readings: Readings | None = None,
        vulkan: VulkanMemory | None = None,
        own: OwnIdentity = NOBODY,
    ) -> Residency:
        """Opens the host's ledger and sets the manager's gate.

        `needed`: estimates a model's memory; `vulkan`: the GPU that llama.cpp uses with Vulkan; `own`: for
        requests to neighbours.

        Raises:
            DatabaseUnusable: the ledger cannot be used; the message names the remedy.
        """
        kept, replica = settings.residency, settings.model.replica
        readings = readings or Readings.of(kept.visible_devices, vulkan)
        pools = await asyncio.to_thread(Pools.read, readings.devices)
        ledger = await Ledger.open(kept.folder, peer_address(settings.service.listen), replica, pools)
        ledger_sync = LedgerSync(manager, ledger, readings)
        admission = Admission(manager, ledger, ledger_sync, needed, kept, readings, replica, own=own)
        manager.gate = admission
        manager.idle_seconds = kept.idle_seconds
        return cls(manager, ledger, Monitor(manager, ledger, ledger_sync, admission, kept, readings))

    async def start(self) -> None:
        """Starts the monitor; returns after the first reading, so that there is a snapshot."""
        await self._monitor.look()
        self._watching = asyncio.create_task(self._monitor.run())

    async def close(self) -> None:
        """Stops the monitor and closes the ledger; call it after closing the manager."""
        if self._watching:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._ledger.close()

    async def evict(self, key: ResidentKey, reason: str) -> int | None:
        """Unloads a model. See ModelManager.evict."""
        return await self._manager.evict(key, reason)

    def snapshot(self) -> MemorySnapshot:
        """Returns the last reading of memory and residents; cheap: reads nothing."""
        return self._monitor.snapshot
