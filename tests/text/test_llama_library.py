"""The builds of llama.cpp for GPUs: where they are, and which devices they bring."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from services.text import llama_library as builds
from services.text.llama_library import llama_devices, llama_environ, llama_library
from services.worker.devices import FoundDevice, RuntimeDevices


def test_a_build_is_a_folder_named_for_its_device(tmp_path: Path) -> None:
    assert llama_library("cuda", tmp_path) is None
    assert llama_environ("cuda", tmp_path) == {}
    for kind in ("cuda", "mps"):
        (tmp_path / kind).mkdir()
    assert llama_library("cuda", tmp_path) == tmp_path / "cuda"
    assert llama_environ("cuda", tmp_path) == {"LLAMA_CPP_LIB_PATH": str(tmp_path / "cuda")}
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
