"""`allm doctor`: on this machine, which has no GPU, and with the answers of other machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from services.cli import doctor
from services.settings.settings import load_settings
from services.worker.devices import FoundDevice, RuntimeDevices

GIB = 1024**3
RUNTIMES = ("llama_cpp", "torch", "faster_whisper", "whisper", "diffusers")


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as a person does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ALLM_", "GGML_"))}
    command = [sys.executable, "-m", "services.cli", "doctor", *arguments]
    return subprocess.run(command, env=kept | environ, capture_output=True, text=True, check=False)


def test_a_machine_without_a_gpu_computes_on_its_processor() -> None:
    ran = run("--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    answer = json.loads(ran.stdout)
    findings = {each["subject"]: each["finding"] for each in answer["findings"]}
    assert answer["ok"] is True
    assert findings["GPUs"] == doctor.NO_GPU
    assert all(findings[name].startswith("computes on the processor") for name in RUNTIMES)
    assert findings["gateway"] == "Envoy is installed"


def test_the_last_line_states_whether_the_machine_can_serve() -> None:
    assert run().stdout.endswith("`allm serve` serves on this machine\n")
    assert "serves on this machine" not in run(ALLM_DEVICE="cuda").stdout


def test_a_missing_requested_device_sets_the_exit_status() -> None:
    ran = run(ALLM_DEVICE="cuda")
    assert ran.returncode == 1
    assert "serves nothing: ALLM_DEVICE=cuda" in ran.stdout
    assert "none: no runtime here can compute on cuda" in ran.stdout
    assert "Missing for llama_cpp, torch, whisper, faster_whisper, diffusers: no NVIDIA driver" in ran.stdout


def test_a_wrong_setting_is_named() -> None:
    ran = run(ALLM_DEVICE="tpu")
    assert ran.returncode == 2
    assert "ALLM_DEVICE" in ran.stderr


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, RuntimeDevices]:
    """A machine with an H100: the answers of the runtimes' processes, which a test may change."""
    gpu = FoundDevice("cuda", "cuda:0", "NVIDIA H100", 80 * GIB, 79 * GIB)
    answers = {name: RuntimeDevices(name, "1.0", (gpu,), {}) for name in RUNTIMES}

    async def probe(runtime: str, **_: Any) -> RuntimeDevices:
        return answers[runtime]

    async def llama(_: object) -> RuntimeDevices:
        return answers["llama_cpp"]

    monkeypatch.setattr(doctor, "probe", probe)
    monkeypatch.setattr(doctor, "llama_devices", llama)
    monkeypatch.setattr(doctor, "no_sign_of", lambda kind, _: "" if kind == "cuda" else "none")
    monkeypatch.setattr(doctor, "nvidia_driver", lambda: "580.65")
    return answers


async def lines(device: str = "auto") -> dict[str, doctor.Line]:
    """Examines the machine; returns the findings by subject."""
    return {line.subject: line for line in await doctor.examine(load_settings({"ALLM_DEVICE": device}))}


async def test_a_gpu_is_named_with_its_memory_and_driver(machine: dict[str, RuntimeDevices]) -> None:
    found = await lines()
    assert found["GPUs"].finding == "cuda:0 NVIDIA H100, 80 GiB; NVIDIA driver 580.65"
    assert {found[name].finding for name in RUNTIMES} == {"computes on cuda (1.0)"}


async def test_a_build_without_cuda_is_reported_with_its_remedy(machine: dict[str, RuntimeDevices]) -> None:
    reason = "llama.cpp is built without cuda: make llama-cuda"
    machine["llama_cpp"] = RuntimeDevices("llama_cpp", "1.0", (), {"cuda": reason})
    found = await lines()
    assert (found["llama_cpp"].finding, found["llama_cpp"].missing) == ("computes on the processor (1.0)", reason)
    assert not found["llama_cpp"].wanted, "under `auto` nobody asks for it"
    assert (await lines("cuda"))["llama_cpp"].wanted


async def test_a_runtime_that_never_computes_on_a_device_is_no_fault(machine: dict[str, RuntimeDevices]) -> None:
    """On a GPU of AMD with ALLM_DEVICE=vulkan, everything that can be there is there."""
    gpu = FoundDevice("vulkan", "vulkan:0", "AMD Radeon", 16 * GIB, 15 * GIB)
    for name in RUNTIMES:
        machine[name] = RuntimeDevices(name, "1.0", (gpu,) if name == "llama_cpp" else (), {})
    found = await lines("vulkan")
    assert found["llama_cpp"].finding == "computes on vulkan, as ALLM_DEVICE asks (1.0)"
    assert not any(line.wanted for line in found.values())
    assert "with ALLM_DEVICE=auto it takes the best device" in found["torch"].missing


async def test_an_old_driver_is_reported(machine: dict[str, RuntimeDevices]) -> None:
    reason = "the NVIDIA driver 535.1 is too old: torch 2.13 needs 580 or newer (CUDA 13): update the driver"
    machine["torch"] = RuntimeDevices("torch", "torch 2.13", (), {"cuda": reason})
    found = await lines("cuda")
    assert (found["torch"].wanted, found["torch"].missing) == (True, reason)
    assert found["diffusers"].finding == "computes on cuda, as ALLM_DEVICE asks (1.0)"
