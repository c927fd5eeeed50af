"""A host small enough to be full: fake memory figures, and services on it that load nothing real.

Ledger, admission, monitor and the calls between services are real.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from allm.models.v1 import residency_service_pb2_grpc

from services.errors import AllmError
from services.models.descriptor import ModelDescriptor
from services.models.runtimes import RUNTIMES, RuntimeSpec
from services.residency.manager import ModelManager
from services.residency.memory.admission import Admission
from services.residency.memory.device_memory import DeviceMemory
from services.residency.memory.host_memory import HostMemory, ProcessMemory
from services.residency.memory.ledger import Ledger, LedgerSync
from services.residency.memory.memory_estimate import HOST, MemoryEstimate
from services.residency.memory.monitor import Monitor
from services.residency.memory.readings import Readings
from services.residency.memory.reservation import ResidentKey, resident_key
from services.residency.residency import Residency
from services.residency.servicer import ResidencyServicer
from services.residency.slot import Slot
from services.settings.modality_settings import MIB
from services.settings.settings import ResidencySettings

RUNTIME = RUNTIMES[0]
TOTAL = 1000 * MIB
_pids = itertools.count(1)


def model(model_id: str, generation: int = 1) -> ModelDescriptor:
    """Returns a model; `a-300` needs 300 MiB."""
    return ModelDescriptor(
        id=model_id,
        modality="text",
        format="gguf",
        architecture="llama",
        capabilities=frozenset({"chat"}),
        files=(Path("/m.gguf"),),
        primary=Path("/m.gguf"),
        size=1,
        context_tokens=1,
        generation=generation,
    )


def needed(descriptor: ModelDescriptor, _runtime: RuntimeSpec) -> MemoryEstimate:
    """Reads the estimate from the model's name, in MiB; the number after a `+` is for a GPU."""
    host, _, device = descriptor.id.partition("-")[2].partition("+")
    devices = {HOST: int(host) * MIB} | ({"cuda:0": int(device) * MIB} if device else {})
    return MemoryEstimate(devices, {"weights": sum(devices.values())})


def key(model_id: str, generation: int = 1) -> ResidentKey:
    return resident_key(model(model_id, generation), RUNTIME)


@dataclass
class Figures:
    """The fake memory figures. Tests change them; loaded models add to them."""

    total: int = TOTAL
    foreign: int = 0  # bytes of the host in use by other programs
    workers: dict[int, int] = field(default_factory=dict)  # process id -> bytes of the host
    on_device: dict[int, int] = field(default_factory=dict)  # process id -> bytes of cuda:0
    device_total: int = 0  # 0: no GPU
    live: bool = True  # whether the GPU's figures contain what workers take
    anonymous: bool = False  # the driver hides which processes hold a GPU's memory, as in containers

    def readings(self) -> Readings:
        return Readings(host=self._host, devices=self._devices, process=self._process)

    def _host(self) -> HostMemory:
        return HostMemory(total=self.total, used=self.foreign + sum(self.workers.values()), source="a test")

    def _devices(self) -> list[DeviceMemory]:
        used = sum(self.on_device.values())
        whose = {} if self.anonymous else dict(self.on_device)
        gpu = DeviceMemory("cuda:0", self.device_total, used if self.live else 0, whose, live=self.live)
        return [gpu] if self.device_total else []

    def _process(self, pid: int) -> ProcessMemory:
        held = self.workers.get(pid, 0)
        return ProcessMemory(held=held, mapped=0, peak=held)


class Loaded:
    """A resident that takes the memory it needs, or the amount that a test sets."""

    def __init__(self, descriptor: ModelDescriptor, figures: Figures) -> None:
        self.id = descriptor.id
        self.pid = next(_pids)
        self.alive = True
        self.problem: AllmError | None = None
        self.peak_memory = 0
        self._figures = figures
        estimate = needed(descriptor, RUNTIME).devices
        figures.workers[self.pid] = estimate[HOST]
        if device := estimate.get("cuda:0"):
            figures.on_device[self.pid] = device

    def take(self, count: int) -> None:
        """Sets the host memory it holds, in bytes."""
        self._figures.workers[self.pid] = count

    def die(self, problem: AllmError) -> None:
        """Ends its worker unexpectedly."""
        self.alive, self.problem = False, problem
        self._figures.workers.pop(self.pid, None)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.alive = False
        self._figures.workers.pop(self.pid, None)
        self._figures.on_device.pop(self.pid, None)


class Clock:
    """A clock that tests advance, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 0.001  # no two uses have the same time, so the order of use is always defined
        return self.now


class Service:
    """A service on the host. `failures`: errors of its next loads; `gate`: loads wait while it is closed."""

    def __init__(self, figures: Figures, clock: Clock, monotonic: Clock) -> None:
        self.failures: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun: list[str] = []
        self._figures = figures
        self.manager: ModelManager[Loaded] = ModelManager(self._load, clock=clock, monotonic=monotonic)
        self.admission: Admission
        self.monitor: Monitor
        self.ledger: Ledger

    async def use(self, model_id: str, generation: int = 1) -> Loaded:
        """Makes a request that ends immediately."""
        async with self.manager.lease(model(model_id, generation), RUNTIME) as loaded:
            return loaded

    async def arrival(self, model_id: str) -> Slot[Loaded]:
        """Waits until the model's load has begun. Returns its slot."""
        async with asyncio.timeout(30):
            while model_id not in self.begun:  # noqa: ASYNC110 (there is no event)
                await asyncio.sleep(0.01)
        slot = self.manager.slot(key(model_id))
        assert slot
        return slot

    def loaded(self) -> set[str]:
        """Returns the ids of this service's loaded models."""
        return {model_id for model_id, _ in self.manager.residents()}

    async def turn(self) -> None:
        """Runs one round of the monitor."""
        await self.monitor.look()
        await self.monitor.act()

    async def _load(self, descriptor: ModelDescriptor, _runtime: RuntimeSpec) -> Loaded:
        self.begun.append(descriptor.id)
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        return Loaded(descriptor, self._figures)


@dataclass
class SmallHost:
    """A host with one ledger. Its clocks move only when a test advances them."""

    folder: Path
    figures: Figures = field(default_factory=Figures)
    clock: Clock = field(default_factory=Clock)
    monotonic: Clock = field(default_factory=Clock)
    _names: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @asynccontextmanager
    async def service(self, patience: float = 0.0, **settings: float) -> AsyncIterator[Service]:
        """Starts another service, which answers its neighbours on its own socket."""
        kept = residency_settings(self.folder / "ledger", **settings)
        name = f"s{next(self._names)}"
        address = f"unix:{self.folder / name}.sock"
        made = Service(self.figures, self.clock, self.monotonic)
        readings = self.figures.readings()
        made.ledger = await Ledger.open(kept.folder, address, name)
        ledger_sync = LedgerSync(made.manager, made.ledger, readings)
        made.admission = Admission(made.manager, made.ledger, ledger_sync, needed, kept, readings, name, patience)
        made.manager.gate = made.admission
        made.monitor = Monitor(
            made.manager,
            made.ledger,
            ledger_sync,
            made.admission,
            kept,
            readings,
            monotonic=self.monotonic,
        )
        server = grpc.aio.server()
        residency = Residency(made.manager, made.ledger, made.monitor)
        residency_service_pb2_grpc.add_ResidencyServiceServicer_to_server(ResidencyServicer(residency), server)
        server.add_insecure_port(address)
        await server.start()
        try:
            yield made
        finally:
            made.gate.set()
            await server.stop(None)
            await made.manager.close()
            await made.ledger.close()


def residency_settings(folder: Path, **settings: float) -> ResidencySettings:
    """Returns the default settings with the given changes."""
    values = {
        "threshold": 0.9,
        "host_bytes": 0,
        "device_bytes": 0,
        "model_bytes": 0,
        "idle_seconds": 0.0,
        "max_models": 0,
        "preload": (),
        **settings,
    }
    return ResidencySettings(folder=folder, **values)  # type: ignore[arg-type]
