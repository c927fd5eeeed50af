"""Which memory a place really is: containers that share a ledger may have limits and GPUs of their own by one name."""

from __future__ import annotations

from collections.abc import Mapping

from services.residency.memory.device_memory import read_devices
from services.residency.memory.host_memory import read_host_memory
from services.residency.memory.memory_estimate import HOST


class Pools:
    """Names of places as this process uses them, and as all processes of a host can compare them."""

    def __init__(self, pools: Mapping[str, str]) -> None:
        """`pools`: place -> pool. A place that is not in it is called the same by everybody."""
        self._pools = dict(pools)
        self._places = {pool: place for place, pool in pools.items()}

    @classmethod
    def read(cls, visible: str = "") -> Pools:
        """Those of this process. `visible`: see read_devices."""
        devices = {device.name: device.pool for device in read_devices(visible)}
        return cls({HOST: read_host_memory().pool, **devices})

    def shared(self, places: Mapping[str, int]) -> dict[str, int]:
        """Bytes by pool."""
        return {self._pools.get(place, place): count for place, count in places.items()}

    def own(self, pools: Mapping[str, int]) -> dict[str, int]:
        """Bytes by place; a pool that this process cannot reach keeps its name."""
        return {self._places.get(pool, pool): count for pool, count in pools.items()}
