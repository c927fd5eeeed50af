"""Detection of vLLM in interpreters with and without it, and of the builds of llama.cpp with their devices."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from services.models.runtime_choice import EngineRegistry
from services.models.runtimes import (
    RUNTIMES,
    VLLM_CPU_DECODERS,
    VLLM_CPU_QUANTIZATIONS,
    VLLM_DECODERS,
    VLLM_MISSING,
    VLLM_QUANTIZATIONS,
    VLLM_SEEING,
    RuntimeSpec,
)
from services.text import runtime_availability as builds
from services.text.runtime_availability import (
    llama_devices,
    llama_environ,
    llama_library,
    text_runtimes,
    with_vllm_here,
)
from services.worker.devices import FoundDevice, RuntimeDevices

SECONDS = 60.0  # time for an interpreter's start on a busy machine


def vllm(python: str, seconds: float = SECONDS) -> RuntimeSpec:
    runtimes = text_runtimes(python, seconds)
    assert [runtime.name for runtime in runtimes] == [runtime.name for runtime in RUNTIMES]
    assert [runtime for runtime in runtimes if runtime.name != "vllm"] == [
        one for one in RUNTIMES if one.name != "vllm"
    ]
    (found,) = [runtime for runtime in runtimes if runtime.name == "vllm"]
    return found


def interpreter(path: Path, *packages: str, body: str = "") -> str:
    """Writes an interpreter with exactly these packages, which fails if it imports them."""
    for package in packages:
        folder = path / "packages" / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise SystemExit('imported')")
    script = path / "python"
    script.write_text(body or f'#!/bin/sh\nPYTHONPATH={path}/packages exec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_an_interpreter_with_both_packages_is_usable(tmp_path: Path) -> None:
    assert vllm(interpreter(tmp_path, "vllm", "services")).missing == ""


def test_an_interpreter_that_lacks_a_package_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a worker imports from the service's working directory, and so does the check
    bare = interpreter(tmp_path / "bare", "services")
    assert vllm(bare).missing.startswith(f"{bare} (ALLM_VLLM_PYTHON) has no vLLM: ")
    half = interpreter(tmp_path / "half", "vllm")
    assert vllm(half).missing.startswith(f"{half} (ALLM_VLLM_PYTHON) has vLLM, but not allm: ")


def test_a_folder_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "has no vLLM" in vllm(interpreter(tmp_path / "bare", "services")).missing


def test_an_invalid_interpreter_is_reported(tmp_path: Path) -> None:
    assert "cannot be started: No such file or directory" in vllm(str(tmp_path / "python")).missing
    broken = interpreter(tmp_path, body="#!/bin/sh\nexit 3\n")
    assert "ended with exit code 3" in vllm(broken).missing
    endless = interpreter(tmp_path, body="#!/bin/sh\nexec sleep 600\n")
    assert (
        vllm(endless, seconds=0.2).missing
        == f"{endless} (ALLM_VLLM_PYTHON) did not report within 0.2 seconds whether it has vLLM"
    )


def test_on_a_cpu_fewer_models_run(tmp_path: Path) -> None:
    runtimes = text_runtimes(interpreter(tmp_path, "vllm", "services"), SECONDS)

    def on(device: str) -> RuntimeSpec:
        registry = with_vllm_here(EngineRegistry(device, forced=True, runtimes=runtimes))
        assert (registry.device, registry.forced) == (device, True)
        return next(one for one in registry.runtimes if one.name == "vllm")

    here, there = on("cpu"), on("cuda")
    assert (here.architectures["chat"], here.quantizations) == (
        VLLM_CPU_DECODERS | VLLM_SEEING,
        VLLM_CPU_QUANTIZATIONS,
    )
    assert (there.architectures["chat"], there.quantizations) == (VLLM_DECODERS | VLLM_SEEING, VLLM_QUANTIZATIONS)
    assert here.architectures["vision"] == there.architectures["vision"] == VLLM_SEEING


def test_our_own_interpreter_is_asked_without_importing_anything(tmp_path: Path) -> None:
    """In a separate process, whose working directory holds its packages."""
    program = (
        "import sys\n"
        "from services.text.runtime_availability import text_runtimes\n"
        "(found,) = [one for one in text_runtimes('') if one.name == 'vllm']\n"
        "assert not {'vllm', 'torch', 'ray', 'transformers'} & set(sys.modules)\n"
        "print(found.missing)\n"
    )

    def ask() -> str:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
        return done.stdout.strip()

    (tmp_path / "vllm").mkdir()
    assert ask() == VLLM_MISSING
    (tmp_path / "vllm" / "__init__.py").write_text("raise SystemExit('imported')")
    assert ask() == ""


def test_a_build_is_a_folder_named_for_its_device(tmp_path: Path) -> None:
    assert llama_library("cuda", tmp_path) is None
    assert llama_environ("cuda", tmp_path) == {}
    for kind in ("cuda", "mps"):
        (tmp_path / kind).mkdir()
    assert llama_library("cuda", tmp_path) == tmp_path / "cuda"
    assert llama_environ("cuda", tmp_path) == dict.fromkeys(
        ("LLAMA_CPP_LIB_PATH", "MTMD_CPP_LIB"), str(tmp_path / "cuda")
    )
    assert llama_library("mps", tmp_path) is None
    default = Path(sys.prefix) / "llama.cpp" / "cuda"
    assert llama_library("cuda") == (default if default.is_dir() else None)


async def test_each_build_is_asked_for_its_own_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vulkan").mkdir()
    (tmp_path / "cuda").mkdir()
    kinds = ("cuda", "vulkan", "mps")

    async def probe(_runtime: str, environ: dict[str, str] | None = None) -> RuntimeDevices:
        build = Path((environ or {}).get("LLAMA_CPP_LIB_PATH", "")).name
        usable = ("cuda", "vulkan") if build == "vulkan" else ()
        missing = {kind: f"{build or 'installed'} lacks {kind}" for kind in kinds if kind not in usable}
        return RuntimeDevices(
            "llama_cpp",
            f"{build or 'cpu'} build",
            tuple(FoundDevice(kind, f"{kind}:0", "") for kind in usable),
            missing,
        )

    monkeypatch.setattr(builds, "probe", probe)
    found = await llama_devices(tmp_path)
    assert [device.kind for device in found.devices] == ["vulkan"], "the build for cuda has none"
    assert found.missing == {"cuda": "cuda lacks cuda", "mps": "installed lacks mps"}
    assert found.version == "vulkan build"
