"""The parts that the text, audio and image services build alike: residency and provision around a manager."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc
from allm.models.v1 import residency_service_pb2_grpc

from services.models.descriptor import Modality
from services.models.runtime_choice import EngineRegistry
from services.models.runtimes import CPU, DEVICES, RuntimeSpec
from services.provision.provision import EVERYTHING, Provision
from services.provision.reporter import FigureReader
from services.residency.manager import ModelManager
from services.residency.memory.admission import Needed
from services.residency.memory.device_memory import VulkanMemory
from services.residency.residency import Residency
from services.residency.servicer import ResidencyServicer
from services.rpc.channel import OwnIdentity
from services.rpc.server import Application
from services.settings.model_groups import GroupShare
from services.settings.settings import Settings
from services.worker.devices import RuntimeDevices

AUTO = "auto"
# Of the reasons why a runtime has no GPU, `auto` states those that may have a remedy.
_ONLY_APPLE = "mps"


async def open_registry(
    setting: str, runtimes: Iterable[RuntimeSpec], devices: Iterable[Awaitable[RuntimeDevices]]
) -> EngineRegistry:
    """Determines the device of every runtime. Never raises but on cancellation.

    Args:
        setting: the value of ALLM_DEVICE. With `auto` each runtime gets the best device that it can use.
        runtimes: the runtimes of the registry; those that nobody asks for get the service's device.
        devices: the answers of the service's runtimes, each with the devices that it can use.
    """
    found = {each.runtime: each for each in await asyncio.gather(*devices)}
    here = tuple(on_device(one, found[one.name], setting) if one.name in found else one for one in runtimes)
    best = min((one.device for one in here if one.device), key=DEVICES.index, default=CPU)
    return EngineRegistry(best if setting == AUTO else setting, forced=setting != AUTO, runtimes=here)


def on_device(runtime: RuntimeSpec, found: RuntimeDevices, setting: str) -> RuntimeSpec:
    """Returns the runtime with the device that it computes on here, and the reason if that is not what is wanted.

    `setting`: as in open_registry. A requested device stays the runtime's device even if it cannot be used: the models
    are unsupported then, and nothing falls back to the processor.
    """
    wanted = DEVICES if setting == AUTO else (setting,)
    for kind in wanted:
        if kind == CPU:
            break
        if kind in runtime.devices and (device := found.first(kind)):
            own = 0 if device.shares_host else device.total
            return replace(runtime, device=kind, shares_host=device.shares_host, packs=device.packs, gpu_bytes=own)
    if setting != AUTO:
        return replace(runtime, device=setting, lacking=found.missing.get(setting, ""))
    reasons = {why: None for kind, why in found.missing.items() if kind in runtime.devices and kind != _ONLY_APPLE}
    return replace(runtime, device=CPU, lacking="; ".join(reasons))


@dataclass(frozen=True, slots=True)
class ModalityService:
    """The models of a service: those registered, in `provision`, and those in memory, in `manager`."""

    manager: ModelManager[Any]
    residency: Residency
    residents: ResidencyServicer
    provision: Provision

    @classmethod
    async def open(
        cls,
        server: grpc.aio.Server,
        settings: Settings,
        modality: Modality,
        registry: EngineRegistry,
        manager: ModelManager[Any],
        needed: Needed,
        share: GroupShare = EVERYTHING,
        vulkan: VulkanMemory | None = None,
    ) -> ModalityService:
        """Builds the parts, and adds ResidencyService to the server.

        `needed`: estimates a model's memory; `share`: the models served here; `vulkan`: as in Residency.open, which
        names the exceptions.
        """
        own = OwnIdentity.of(settings.auth, modality, settings.model.replica, settings.tls.service)
        residency = await Residency.open(settings, manager, needed, vulkan=vulkan, own=own)
        residents = ResidencyServicer(residency)
        residency_service_pb2_grpc.add_ResidencyServiceServicer_to_server(residents, server)
        figures = FigureReader(residency.snapshot, settings.residency.threshold)
        preload = settings.residency.preload
        provision = Provision(settings.model, modality, registry, manager, preload, own, share, figures=figures)
        return cls(manager, residency, residents, provision)

    async def start(self) -> None:
        """Starts the memory monitor, then the provision."""
        await self.residency.start()
        await self.provision.start()

    async def close(self) -> None:
        """Stops the provision, ends all workers, and closes the ledger."""
        await self.provision.close()
        await self.manager.close()
        await self.residency.close()

    def application(
        self, services: Sequence[str], close: Callable[[], Awaitable[None]], described: Sequence[str] = ()
    ) -> Application:
        """Returns the application of the typed `services`. `close` has to close this object, too."""
        warm, models = self.provision.warm, self.provision.models
        return Application(services, close, leave=self._leave, described=described, warm=warm, models=models)

    async def _leave(self) -> None:
        self.residents.end_watches()
        await self.provision.leave()
