"""Memory of a GPU under Vulkan: from NVML, from amdgpu's files, or from a probe and the reservations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from services.residency.memory.device_memory import DeviceMemory
from services.residency.memory.vulkan_memory import VulkanMemory
from services.worker.devices import FoundDevice, RuntimeDevices

BUS = "0000:c1:00.0"
FOUND = FoundDevice("vulkan", "vulkan:0", "a GPU", 100, 60, BUS)


class Probe:
    """Answers of a probe process, one after the other."""

    def __init__(self, *answers: FoundDevice) -> None:
        self.answers = list(answers)

    async def __call__(self) -> RuntimeDevices:
        found = (self.answers.pop(0),) if self.answers else ()
        return RuntimeDevices("llama_cpp", "1.0", found, {})


def files(root: Path, **figures: int) -> Path:
    folder = root / "sys/bus/pci/devices" / BUS
    folder.mkdir(parents=True)
    for name, value in figures.items():
        (folder / f"mem_info_{name}").write_text(f"{value}\n")
    return root


async def test_an_nvidia_gpu_has_the_figures_of_nvml(tmp_path: Path) -> None:
    nvml = DeviceMemory("cuda:0", 90, 50, {7: 20}, "GPU-1", BUS)
    memory = VulkanMemory(FOUND, Probe(), tmp_path)
    assert memory.read([nvml]) == replace(nvml, name="vulkan:0", pool=f"vulkan {BUS}")
    await memory.refresh()
    assert memory.read([nvml]) is not None, "no probe is asked"


async def test_amdgpu_counts_all_processes(tmp_path: Path) -> None:
    root = files(tmp_path, vram_total=80, vram_used=30, gtt_used=5)
    seen = VulkanMemory(FOUND, Probe(), root).read([])
    assert seen == DeviceMemory("vulkan:0", 80, 30, pool=f"vulkan {BUS}", bus=BUS)
    shared = VulkanMemory(replace_shared(FOUND), Probe(), root).read([])
    assert shared == DeviceMemory("vulkan:0", 100, 35, pool=f"vulkan {BUS}", bus=BUS)


def replace_shared(found: FoundDevice) -> FoundDevice:
    return FoundDevice(found.kind, found.name, found.description, found.total, found.free, found.bus, shares_host=True)


async def test_any_other_gpu_has_the_figures_of_the_last_probe(tmp_path: Path) -> None:
    later = FoundDevice("vulkan", "vulkan:0", "a GPU", 100, 20, BUS)
    memory = VulkanMemory(FOUND, Probe(later), tmp_path)
    assert memory.read([]) == DeviceMemory("vulkan:0", 100, 40, pool=f"vulkan {BUS}", bus=BUS, live=False)
    await memory.refresh()
    assert memory.read([]) == DeviceMemory("vulkan:0", 100, 80, pool=f"vulkan {BUS}", bus=BUS, live=False)
    await memory.refresh()
    assert memory.read([]) is None, "it is gone"


def test_without_a_size_there_is_no_reading(tmp_path: Path) -> None:
    assert VulkanMemory(FoundDevice("vulkan", "vulkan:0", "a GPU"), Probe(), tmp_path).read([]) is None
