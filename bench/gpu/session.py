"""A model as a service holds it: its manager, its worker process, and admission with the ledger around them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bench.gpu.result import NotRun
from services.audio.manager import AudioManager
from services.audio.memory_estimate import AudioMemoryEstimate
from services.errors import Unsupported
from services.image.manager import ImageManager
from services.image.memory_estimate import ImageMemoryEstimate
from services.modality import open_registry
from services.models.descriptor import EngineSettings, Format, ModelDescriptor, describe
from services.models.formats.inspect import inspect
from services.models.hub.source import LocalTree
from services.models.runtime_choice import EngineRegistry
from services.models.runtimes import CPU, RuntimeSpec
from services.residency.manager import ModelManager
from services.residency.memory.admission import Needed
from services.residency.memory.device_memory import VulkanMemory
from services.residency.memory.memory_estimate import HOST, gpu_of
from services.residency.memory.readings import Readings
from services.residency.memory.reservation import ResidentKey, resident_key
from services.residency.residency import Residency
from services.settings.settings import Settings, load_settings
from services.text.manager import LLAMA, VLLM, TextManager
from services.text.memory_estimate import TextMemoryEstimate
from services.text.runtime_availability import llama_devices, text_runtimes, with_vllm_here
from services.worker.devices import RuntimeDevices, probe

PATIENCE_SECONDS = 30.0  # for memory to be given back
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Subject:
    """A model on disk, for one runtime."""

    id: str
    path: Path
    format: Format
    runtime: str
    engine: EngineSettings


class Session:
    """A subject on one device. Nothing is loaded before the first lease."""

    def __init__(
        self,
        manager: ModelManager[Any],
        descriptor: ModelDescriptor,
        runtime: RuntimeSpec,
        needed: Needed,
        readings: Readings,
    ) -> None:
        self.device = runtime.device or CPU
        self.manager = manager
        self.descriptor = descriptor
        self.runtime = runtime
        self._needed = needed
        self._readings = readings

    @classmethod
    @asynccontextmanager
    async def open(cls, subject: Subject, device: str, home: Path) -> AsyncIterator[Session]:
        """Opens the manager of a subject's modality; unloads everything at the end.

        Raises:
            NotRun: the runtime cannot run the subject on `device`.
        """
        own = {"ALLM_HOME": str(home), "ALLM_DEVICE": device, "ALLM_MODEL_ROOTS": str(subject.path.parent)}
        settings = load_settings({**os.environ, **own})
        folder, file = (subject.path, "") if subject.path.is_dir() else (subject.path.parent, subject.path.name)
        tree = LocalTree(folder, [folder])
        finding = inspect(tree, subject.format, file)
        manifest, facts = finding.manifest(tree), finding.facts(subject.id)
        registry, found = await _registry(settings, subject.runtime)
        try:
            runtime = registry.resolve(facts, asked=subject.runtime, engine=subject.engine)
        except Unsupported as error:
            raise NotRun(error.message) from error
        descriptor = describe(facts, 1, manifest, folder, engine=subject.engine)
        manager, needed = _manager(settings, facts.modality)
        gpu = found.first("vulkan") if found else None
        vulkan = VulkanMemory(gpu, partial(llama_devices, settings.text.llama_libraries)) if gpu else None
        residency = await Residency.open(settings, manager, needed, vulkan=vulkan)
        try:
            await residency.start()
            yield cls(manager, descriptor, runtime, needed, Readings.of(settings.residency.visible_devices, vulkan))
        finally:
            await manager.close()
            await residency.close()

    @property
    def key(self) -> ResidentKey:
        """The manager's key of the model."""
        return resident_key(self.descriptor, self.runtime)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Any]:
        """Leases the model, loading it if it is not loaded."""
        async with self.manager.lease(self.descriptor, self.runtime) as model:
            yield model

    def reckoned(self) -> int:
        """Returns the bytes that admission reserves on the device; on the processor, on the host."""
        return self._needed(self.descriptor, self.runtime).devices[gpu_of(self.runtime) or HOST]

    def taken(self) -> int:
        """Returns the used bytes of the device, by all processes; on the processor, those of our own workers."""
        if name := gpu_of(self.runtime):
            for device in self._readings.devices():
                if device.name == name:
                    return device.used
            raise NotRun(f"the memory of {name} cannot be read")
        found = 0
        for process in psutil.Process().children(recursive=True):
            try:
                found += process.memory_info().rss if any(".engine" in part for part in process.cmdline()) else 0
            except psutil.Error:
                continue
        return found

    async def given_back(self, before: int, tolerance: float) -> tuple[int, float]:
        """Waits until no more than `before` bytes are taken; returns what is taken beyond them, and the seconds."""
        begun = time.monotonic()
        while True:
            beyond = await asyncio.to_thread(self.taken) - before
            waited = time.monotonic() - begun
            if beyond <= tolerance or waited > PATIENCE_SECONDS:
                return beyond, waited
            await asyncio.sleep(_LOOK_SECONDS)


class Peak:
    """The most memory that was taken while it watched."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._task: asyncio.Task[None] | None = None
        self.bytes = 0

    async def __aenter__(self) -> Peak:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            self.bytes = max(self.bytes, await asyncio.to_thread(self._session.taken))
            await asyncio.sleep(_LOOK_SECONDS)


async def _registry(settings: Settings, runtime: str) -> tuple[EngineRegistry, RuntimeDevices | None]:
    """Returns the registry, as the services build it, and the devices that this runtime can use."""
    text = settings.text
    runtimes = await asyncio.to_thread(text_runtimes, text.vllm_python)
    if text.device == CPU:
        return with_vllm_here(await open_registry(CPU, runtimes, [])), None
    if runtime == LLAMA:
        found = await llama_devices(text.llama_libraries)
    else:
        found = await probe(runtime, python=text.vllm_python if runtime == VLLM else "")

    async def answer() -> RuntimeDevices:
        return found

    return with_vllm_here(await open_registry(text.device, runtimes, [answer()])), found


def _manager(settings: Settings, modality: str) -> tuple[ModelManager[Any], Needed]:
    """Returns the manager of a modality and the estimate that its service uses."""
    if modality == "text":
        text = TextManager(settings.text)
        return text, TextMemoryEstimate(settings.text, text.options)
    if modality == "audio":
        audio = AudioManager(settings.audio)
        return audio, AudioMemoryEstimate(settings.audio, audio.options)
    image = ImageManager(settings.image)
    return image, ImageMemoryEstimate(image.options)
