"""The devices of a service's runtimes, from what each of them can use."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from services.modality import on_device, open_registry
from services.models.runtimes import RUNTIMES, RuntimeSpec
from services.worker.devices import FoundDevice, RuntimeDevices

LLAMA_CPP, TORCH = RUNTIMES[:2]
CARD = FoundDevice("cuda", "cuda:0", "a card", 80, 70)
SHARED = FoundDevice("vulkan", "vulkan:0", "an integrated GPU", 20, 10, shares_host=True)
REASONS = {"cuda": "no driver", "vulkan": "no build", "mps": "no Apple silicon"}


async def answered(runtime: str, *devices: FoundDevice) -> RuntimeDevices:
    usable = {each.kind for each in devices}
    return RuntimeDevices(runtime, "1.0", devices, {kind: why for kind, why in REASONS.items() if kind not in usable})


async def test_with_auto_each_runtime_takes_the_best_that_it_can_use() -> None:
    answers = answered("llama_cpp", SHARED), answered("torch")
    registry = await open_registry("auto", (LLAMA_CPP, TORCH), answers)
    assert (registry.device, registry.forced) == ("vulkan", False)
    llama, torch = registry.runtimes
    assert (llama.device, llama.shares_host, llama.lacking) == ("vulkan", True, "")
    assert (torch.device, torch.gpu, torch.lacking) == ("cpu", False, "no driver")
    both = on_device(LLAMA_CPP, await answered("llama_cpp", SHARED, CARD), "auto")
    assert (both.device, both.shares_host) == ("cuda", False)


async def test_a_requested_device_is_never_replaced() -> None:
    answers = answered("llama_cpp", CARD), answered("torch")
    registry = await open_registry("cuda", (LLAMA_CPP, TORCH), answers)
    assert (registry.device, registry.forced) == ("cuda", True)
    assert [(one.device, one.lacking) for one in registry.runtimes] == [("cuda", ""), ("cuda", "no driver")]
    on_cpu = await open_registry("cpu", (LLAMA_CPP,), [answered("llama_cpp", CARD)])
    assert [(one.device, one.lacking) for one in on_cpu.runtimes] == [("cpu", "")]


async def test_a_runtime_that_nobody_asks_for_has_the_services_device() -> None:
    other = RuntimeSpec(name="other", modality="audio", formats=frozenset(), architectures={}, devices=frozenset())
    registry = await open_registry("auto", (LLAMA_CPP, other), [answered("llama_cpp", CARD)])
    assert registry.device_of("other") == registry.device_of("llama_cpp") == "cuda"


@pytest.mark.skipif(sys.platform == "darwin" and platform.machine() == "arm64", reason="has a GPU")
def test_asking_loads_no_native_library() -> None:
    """A native driver library in the service process would be present at every fork and in every crash."""
    program = """
import asyncio, pathlib
import services.modality
from services.worker.devices import KINDS, probe
def libraries():
    return {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
before = libraries()
for runtime in KINDS:
    asyncio.run(probe(runtime))
assert before and not [name for name in libraries() - before if "python" not in name]
"""
    subprocess.run([sys.executable, "-c", program], check=True)
