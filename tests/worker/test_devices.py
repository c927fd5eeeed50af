"""The probe of a runtime's devices, in real processes; a shim plays the interpreter where no library can be broken."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from services.worker import devices
from services.worker.devices import (
    FoundDevice,
    RuntimeDevices,
    cublas_environ,
    driver_problem,
    no_sign_of,
    nvidia_driver,
    probe,
)

SECONDS = 120.0  # for a process that imports torch on a busy machine
VISIBLE = {"GGML_VK_VISIBLE_DEVICES": "0"}  # the sign of a device: llama.cpp is asked


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Linux machine without any GPU."""
    for name in ("_NVIDIA", "_RENDER"):
        monkeypatch.setattr(devices, name, ())
    monkeypatch.setattr(devices, "_AMD", Path("/nowhere"))
    monkeypatch.setattr(devices, "_is_apple", lambda: False)
    monkeypatch.delenv(devices.VISIBLE_VULKAN, raising=False)


def shim(path: Path, body: str) -> str:
    """Writes a program that plays the runtime's interpreter."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def prints(path: Path, answer: RuntimeDevices) -> str:
    return shim(path, f"cat <<'END'\n{msgspec.json.encode(answer).decode()}\nEND")


async def test_without_a_sign_of_a_gpu_no_process_is_started(bare: None, tmp_path: Path) -> None:
    python = shim(tmp_path / "python", f"touch {tmp_path}/asked")
    for runtime, kinds in devices.KINDS.items():
        found = await probe(runtime, python=python)
        assert (found.runtime, found.devices, tuple(found.missing)) == (runtime, (), kinds)
        assert found.missing["cuda"].startswith("no NVIDIA driver is loaded here")
    assert not (tmp_path / "asked").exists()
    assert (await probe("torch")).version.startswith("torch ")


async def test_the_answer_of_the_process_is_read_and_its_environment_passed(bare: None, tmp_path: Path) -> None:
    device = FoundDevice("vulkan", "vulkan:0", "llvmpipe", 2048, 1024, "", shares_host=True)
    answer = RuntimeDevices("llama_cpp", "1.0 (vulkan build)", (device,), {"cuda": "not built", "mps": "not built"})
    found = await probe("llama_cpp", python=prints(tmp_path / "python", answer), environ=VISIBLE, seconds=SECONDS)
    assert (found.version, found.devices, found.first("vulkan")) == (answer.version, (device,), device)
    assert found.missing["cuda"].startswith("no NVIDIA driver"), "the machine's reason comes before the library's"
    seen = shim(tmp_path / "environ", f"env > {tmp_path}/seen")
    await probe("llama_cpp", python=seen, environ={**VISIBLE, "LLAMA_CPP_LIB_PATH": "/there"}, seconds=SECONDS)
    assert {"LLAMA_CPP_LIB_PATH=/there", "CUDA_DEVICE_ORDER=PCI_BUS_ID"} <= set(
        (tmp_path / "seen").read_text().splitlines()
    )


async def test_a_process_that_fails_is_a_reason(bare: None, tmp_path: Path) -> None:
    async def why(python: str, seconds: float = SECONDS) -> str:
        found = await probe("llama_cpp", python=python, environ=VISIBLE, seconds=seconds)
        assert found.devices == ()
        return found.missing["vulkan"]

    assert "cannot be started" in await why(str(tmp_path / "nothing"))
    dying = shim(tmp_path / "dying", "echo first >&2; echo the library is broken >&2; kill -SEGV $$")
    assert (await why(dying)).endswith("failed (exit code -11): the library is broken")
    assert "(exit code 0)" in await why(shim(tmp_path / "silent", "true"))
    assert "did not report within 0.2 seconds" in await why(shim(tmp_path / "endless", "exec sleep 600"), 0.2)


async def test_the_installed_llama_cpp_says_what_it_is_built_for(bare: None) -> None:
    found = await probe("llama_cpp", environ=VISIBLE, seconds=SECONDS)
    assert found.version.startswith("llama-cpp-python ")
    if "(cpu build)" in found.version:
        assert found.missing["vulkan"] == "llama.cpp is built without vulkan: make llama-vulkan"


@pytest.mark.slow
@pytest.mark.skipif(bool(nvidia_driver()), reason="there is a driver here")
async def test_every_library_says_why_it_has_no_gpu(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a file that looks like a driver, every runtime is asked."""
    monkeypatch.setattr(devices, "_NVIDIA", (Path(sys.executable),))
    for runtime in ("torch", "whisper", "diffusers", "faster_whisper"):
        found = await probe(runtime, seconds=SECONDS)
        assert found.devices == ()
        assert any(words in found.missing["cuda"] for words in ("built without CUDA", "does not answer")), found


def test_drivers_that_are_too_old_are_named() -> None:
    assert driver_problem("torch 2.13+cu130", 13, "580.65.06") == driver_problem("x", 12, "525.60.13") == ""
    assert driver_problem("torch 2.13+cu130", 13, "570.124") == (
        "the NVIDIA driver 570.124 is too old: torch 2.13+cu130 needs 580 or newer (CUDA 13): update the driver"
    )
    assert driver_problem("x", 0, "390.1") == driver_problem("x", 13, "unknown") == ""
    assert "does not answer" in driver_problem("x", 13, "")


def test_signs_of_devices(bare: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert all(no_sign_of(kind, {}) for kind in ("cuda", "vulkan", "mps"))
    assert no_sign_of("vulkan", VISIBLE) == ""
    monkeypatch.setattr(devices, "_RENDER", (tmp_path,))
    assert (no_sign_of("vulkan", {}), bool(no_sign_of("cuda", {}))) == ("", True)
    monkeypatch.setattr(devices, "_NVIDIA", (tmp_path,))
    assert no_sign_of("cuda", {}) == ""
    monkeypatch.setattr(devices, "_is_apple", lambda: True)
    assert no_sign_of("mps", {}) == ""


def test_cublas_of_its_package_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    assert cublas_environ() == {}
    folder = tmp_path / "nvidia/cublas/lib"
    folder.mkdir(parents=True)
    (folder / "libcublas.so.12").touch()
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert cublas_environ() == {"LD_LIBRARY_PATH": str(folder)}
    monkeypatch.setenv("LD_LIBRARY_PATH", "/before")
    assert cublas_environ() == {"LD_LIBRARY_PATH": f"{folder}:/before"}
