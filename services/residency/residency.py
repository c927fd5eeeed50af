"""What a service starts to manage its memory: ledger, admission and monitor, put together around its manager."""

from __future__ import annotations

import asyncio
from typing import Any

from services.residency.manager import ModelManager
from services.residency.memory.admission import Admission, Needed
from services.residency.memory.device_memory import read_devices
from services.residency.memory.ledger import Ledger
from services.residency.memory.ledger_sync import LedgerSync
from services.residency.memory.monitor import Monitor
from services.residency.memory.peer import peer_address
from services.residency.memory.pools import Pools
from services.residency.memory.readings import Readings
from services.residency.memory.snapshot import Snapshot
from services.residency.resident import ResidentKey
from services.rpc.own_identity import OwnIdentity
from services.settings.settings import Settings


class Residency:
    """The memory of a service's models. It is what ResidencyService answers from, too."""

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
    ) -> Residency:
        """Opens the ledger of this host, and stands at the manager's gate. `needed`: what a model takes here.

        Raises:
            DatabaseUnusable: the ledger cannot be used; the message says what to do about it.
            SecretUnusable: keys are asked for, and there is no secret to sign with.
        """
        kept, replica = settings.residency, settings.model.replica
        readings = readings or Readings(devices=lambda: read_devices(kept.visible_devices))
        pools = await asyncio.to_thread(Pools.read, kept.visible_devices)
        ledger = await Ledger.open(kept.folder, peer_address(settings.service.listen), replica, pools)
        ledger_sync = LedgerSync(manager, ledger, readings)
        own = OwnIdentity.of_service(settings.auth, replica, settings.tls.service)
        admission = Admission(manager, ledger, ledger_sync, needed, kept, readings, replica, own=own)
        manager.gate = admission
        return cls(manager, ledger, Monitor(manager, ledger, ledger_sync, admission, kept, readings))

    async def start(self) -> None:
        """Begins to watch; returns after the first look, so that there is a snapshot."""
        await self._monitor.look()
        self._watching = asyncio.create_task(self._monitor.run())

    async def close(self) -> None:
        """Ends the watching and leaves the ledger; called when the manager has been closed."""
        if self._watching:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._ledger.close()

    async def evict(self, key: ResidentKey, reason: str) -> int | None:
        """Unloads a model and returns how many bytes that has freed, once they are free; None: nothing was done."""
        return await self._manager.evict(key, reason)

    def snapshot(self) -> Snapshot:
        """Memory and residents as they were last seen."""
        return self._monitor.snapshot
