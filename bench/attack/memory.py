"""The peak memory of a stack's processes, and the limits that the chart sets for their containers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml

VALUES = Path(__file__).parents[2] / "k8s/helm/allm/values.yaml"
LOOK_SECONDS = 0.5
_UNITS = {"Mi": 1024**2, "Gi": 1024**3}
# The container of each process, by the beginning of its name, and the place of its limit in the chart's values.
_CONTAINERS = {
    "services.text": "text",
    "services.audio": "audio",
    "services.image": "image",
    "services.catalog": "catalog",
    "services.authorizer": "gateway.authorizer",
    "envoy": "gateway",
}


def limits() -> dict[str, int]:
    """Returns the memory limit of each container in the chart's default values, in bytes."""
    found = {}
    for place in _CONTAINERS.values():
        value = yaml.safe_load(VALUES.read_text())
        for key in (*place.split("."), "resources", "limits", "memory"):
            value = value[key]
        found[place] = int(value[:-2]) * _UNITS[value[-2:]]
    return found


def resident(pid: int) -> dict[str, int]:
    """Returns the resident bytes of each descendant of a process, by its name and id."""
    found = {}
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess, IndexError):
            words = process.cmdline()
            name = words[words.index("-m") + 1] if "-m" in words else Path(words[0]).name
            found[f"{name} {process.pid}"] = process.memory_info().rss
    return found


@dataclass(slots=True)
class Peaks:
    """The most memory that was seen, in bytes."""

    processes: dict[str, int] = field(default_factory=dict)  # by name and id
    containers: dict[str, int] = field(default_factory=dict)  # sums, in which shared pages count more than once

    def add(self, sizes: Mapping[str, int]) -> None:
        """Adds what all processes hold at one moment."""
        sums = dict.fromkeys(_CONTAINERS.values(), 0)
        for process, size in sizes.items():
            self.processes[process] = max(size, self.processes.get(process, 0))
            for name, container in _CONTAINERS.items():
                if process.startswith(name):
                    sums[container] += size
        for container, size in sums.items():
            self.containers[container] = max(size, self.containers.get(container, 0))

    def passing(self) -> list[str]:
        """Returns the containers that would pass their limit."""
        return [container for container, limit in limits().items() if self.containers.get(container, 0) > limit]


@asynccontextmanager
async def peaks(pid: int) -> AsyncIterator[Peaks]:
    """Watches the descendants of a process while the block runs."""
    found = Peaks()

    async def watch() -> None:
        while True:
            found.add(await asyncio.to_thread(resident, pid))
            await asyncio.sleep(LOOK_SECONDS)

    watching = asyncio.create_task(watch())
    try:
        yield found
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
