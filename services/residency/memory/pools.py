"""The physical memory behind a device name: containers that share a ledger may use one name for different memory."""

from __future__ import annotations

from collections.abc import Mapping

from services.residency.memory.device_memory import read_devices
from services.residency.memory.host_memory import read_host_memory
from services.residency.memory.memory_estimate import HOST


class Pools:
    """A mapping between this process's device names and pool names that all processes of a host share."""

    def __init__(self, pools: Mapping[str, str]) -> None:
        """`pools`: device -> pool. A device that is not in it has the same name everywhere."""
        self._pools = dict(pools)
        self._places = {pool: place for place, pool in pools.items()}

    @classmethod
    def read(cls, visible: str = "") -> Pools:
        """Reads the pools of this process. `visible`: see read_devices."""
        devices = {device.name: device.pool for device in read_devices(visible)}
        return cls({HOST: read_host_memory().pool, **devices})

    def shared(self, places: Mapping[str, int]) -> dict[str, int]:
        """Converts bytes by device to bytes by pool."""
        return {self._pools.get(place, place): count for place, count in places.items()}

    def own(self, pools: Mapping[str, int]) -> dict[str, int]:
        """Converts bytes by pool to bytes by device; a pool that this process cannot reach keeps its name."""
        return {self._places.get(pool, pool): count for pool, count in pools.items()}
