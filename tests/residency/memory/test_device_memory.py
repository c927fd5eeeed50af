"""GPU memory: read from the driver where one is installed, otherwise from a fake NVML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from services.residency.memory import device_memory
from services.residency.memory.device_memory import DeviceMemory, VulkanMemory, read_devices, why_unreadable
from services.residency.memory.host_memory import read_host_memory
from services.worker.devices import FoundDevice, RuntimeDevices, nvidia_driver

GIB = 1024**3


@dataclass
class Gpu:
    """A GPU as the fake NVML reports it."""

    uuid: str
    total: int
    used: int
    processes: dict[int, int | None] = field(default_factory=dict)
    lost: bool = False
    unified: bool = False


class Library:
    """A fake of the NVML functions in use, with NVML's own errors."""

    NVMLError = pynvml.NVMLError
    NVML_ERROR_NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED

    def __init__(self, *gpus: Gpu) -> None:
        self.gpus = gpus
        self.started = 0
        self.broken = False

    def nvmlInit(self) -> None:  # noqa: N802
        self.started += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.broken:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:  # noqa: N802
        if self.gpus[index].lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:  # noqa: N802
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:  # noqa: N802
        return gpu.uuid

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu) -> SimpleNamespace:  # noqa: N802
        if gpu.unified:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(total=gpu.total, used=gpu.used, free=gpu.total - gpu.used)

    def nvmlDeviceGetPciInfo(self, gpu: Gpu) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId=f"00000000:{gpu.uuid[-2:].upper()}:00.0")

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Gpu) -> list[SimpleNamespace]:  # noqa: N802
        if not gpu.processes:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.processes.items()]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Library]:
    def playing(*gpus: Gpu) -> Library:
        library = Library(*gpus)
        monkeypatch.setattr(device_memory, "pynvml", library)
        monkeypatch.setattr(device_memory._nvml, "ready", False)
        return library

    return playing


def first() -> Gpu:
    return Gpu("GPU-1a", 80 * GIB, 10 * GIB, {17: 9 * GIB, 18: None})


def second() -> Gpu:
    return Gpu("GPU-2b", 40 * GIB, 1 * GIB)


@pytest.mark.skipif(bool(nvidia_driver()), reason="there is a driver here")
def test_without_a_driver_no_gpus_are_found() -> None:
    assert read_devices() == []
    assert read_devices("0") == [], "asked again"
    assert "NVML: " in why_unreadable("cuda:0")


@pytest.mark.skipif(not bool(nvidia_driver()), reason="there is no driver here")
def test_the_driver_here_is_asked() -> None:
    devices = read_devices()
    assert devices
    assert [device.name for device in devices] == [f"cuda:{index}" for index in range(len(devices))]
    assert all(0 <= device.used <= device.total for device in devices)
    assert len({device.pool for device in devices}) == len(devices)


def test_each_gpu_is_reported_with_its_users(play) -> None:
    library = play(first(), second())
    assert read_devices() == [
        DeviceMemory("cuda:0", 80 * GIB, 10 * GIB, {17: 9 * GIB}, "GPU-1a", "0000:1a:00.0"),
        DeviceMemory("cuda:1", 40 * GIB, 1 * GIB, {}, "GPU-2b", "0000:2b:00.0"),
    ]
    assert [device.free for device in read_devices()] == [70 * GIB, 39 * GIB]
    assert library.started == 1


@pytest.mark.parametrize(
    ("visible", "pools"),
    [
        ("1", ["GPU-2b"]),
        ("1,0", ["GPU-2b", "GPU-1a"]),
        (" 1 , 0 ", ["GPU-2b", "GPU-1a"]),
        ("GPU-2b", ["GPU-2b"]),
        ("GPU-2,GPU-1", ["GPU-2b", "GPU-1a"]),
        ("MIG-2b", []),
        ("0,7,1", ["GPU-1a"]),
        ("-1", []),
        ("none", []),
    ],
)
def test_gpus_have_the_workers_names(play, visible: str, pools: list[str]) -> None:
    play(first(), second())
    devices = read_devices(visible)
    assert [device.pool for device in devices] == pools
    assert [device.name for device in devices] == [f"cuda:{index}" for index in range(len(pools))]


def test_a_part_of_a_gpu_is_found_by_its_own_name(play) -> None:
    play(first(), Gpu("MIG-5", 10 * GIB, GIB))
    assert [device.total for device in read_devices("MIG-5")] == [10 * GIB]


def test_a_lost_gpu_is_left_out_and_the_others_keep_their_names(play) -> None:
    lost = first()
    lost.lost = True
    play(lost, second())
    assert [(device.name, device.pool) for device in read_devices()] == [("cuda:1", "GPU-2b")]


def test_missing_driver_is_queried_again(play) -> None:
    library = play(first())
    assert len(read_devices()) == 1
    library.broken = True
    assert read_devices() == []
    library.broken = False
    assert len(read_devices()) == 1
    assert library.started == 2


def test_a_gpu_that_shares_the_hosts_memory_has_the_hosts_figures(play: Callable[..., Library]) -> None:
    play(Gpu("GPU-3c", 0, 0, unified=True))
    (found,) = read_devices()
    assert found.total == read_host_memory().total


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


def test_without_a_size_memory_is_unknown(tmp_path: Path) -> None:
    assert VulkanMemory(FoundDevice("vulkan", "vulkan:0", "a GPU"), Probe(), tmp_path).read([]) is None
