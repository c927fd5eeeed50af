"""Availability of the text runtimes on this machine: vLLM, and the builds of llama.cpp for GPUs.

vLLM is detected without importing it, because the import takes seconds and belongs in a worker.

The builds of llama.cpp stand beside the installed one for the processor. The folder `<root>/<kind>` holds one build:
libllama, libmtmd and the libggml libraries that belong to it. It is renamed into place when it is complete. Workers
load it instead of the installed one if LLAMA_CPP_LIB_PATH and MTMD_CPP_LIB name it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from services.models.runtime_choice import EngineRegistry
from services.models.runtimes import (
    CPU,
    RUNTIMES,
    VLLM_CPU_DECODERS,
    VLLM_CPU_QUANTIZATIONS,
    VLLM_MISSING,
    VLLM_SEEING,
    RuntimeSpec,
)
from services.worker.devices import KINDS, RuntimeDevices, probe

log = logging.getLogger(__name__)

VARIABLE = "LLAMA_CPP_LIB_PATH"
PICTURES = "MTMD_CPP_LIB"  # the same for libmtmd, which llama-cpp-python loads by itself
BUILDS = ("cuda", "vulkan")
_LLAMA = "llama_cpp"
NAME = "vllm"
SECONDS = 10.0  # the other interpreter may be on a slow disk; it only starts and finds two packages
_PACKAGES = (NAME, "services")
# Prints the packages that it finds, one per line. A mere folder of that name is not a package.
_LOOK = f"""
import importlib.util
for name in {_PACKAGES!r}:
    found = importlib.util.find_spec(name)
    if found and found.origin:
        print(name)
"""


def text_runtimes(python: str, seconds: float = SECONDS) -> tuple[RuntimeSpec, ...]:
    """Returns all runtimes, with vllm as it is available here. Blocks briefly, at most for `seconds`.

    `python`: the interpreter of vllm's workers (ALLM_VLLM_PYTHON); empty: this one.
    """
    missing = _missing(python, seconds) if python else _missing_here()
    if python and missing:
        log.warning("the runtime vllm is not available", extra={"reason": missing})
    return tuple(replace(one, missing=missing) if one.name == NAME else one for one in RUNTIMES)


def with_vllm_here(registry: EngineRegistry) -> EngineRegistry:
    """Returns the registry with the models that vllm supports on its device: fewer on a processor."""
    if registry.device_of(NAME) != CPU:
        return registry
    known = {"chat": VLLM_CPU_DECODERS | VLLM_SEEING, "vision": VLLM_SEEING}
    runtimes = tuple(
        replace(one, architectures=known, quantizations=VLLM_CPU_QUANTIZATIONS) if one.name == NAME else one
        for one in registry.runtimes
    )
    return EngineRegistry(registry.device, forced=registry.forced, runtimes=runtimes)


def _missing_here() -> str:
    found = importlib.util.find_spec(NAME)
    return "" if found and found.origin else VLLM_MISSING


def _missing(python: str, seconds: float) -> str:
    """Returns the reason why another interpreter cannot run vllm workers; empty if it can."""
    who = f"{python} (ALLM_VLLM_PYTHON)"
    try:
        done = subprocess.run(
            [python, "-c", _LOOK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{who} did not report within {seconds:g} seconds whether it has vLLM"
    except OSError as error:
        return f"{who} cannot be started: {error.strerror or error}"
    if done.returncode:
        return f"{who} is not a working Python interpreter: it ended with exit code {done.returncode}"
    return _lacking(who, done.stdout.split())


def _lacking(who: str, found: Collection[str]) -> str:
    if NAME not in found:
        return f"{who} has no vLLM: install it there, or make an interpreter that has it (make vllm)"
    if "services" not in found:
        return f"{who} has vLLM, but not allm: pip install --no-deps the same allm there (make vllm does both)"
    return ""


def llama_library(kind: str, root: Path | None = None) -> Path | None:
    """Returns the folder of llama.cpp's build for `cuda` or `vulkan`; None if there is none.

    `root`: the folder of the builds (ALLM_LLAMA_LIBRARIES); None: `llama.cpp` in this Python environment.
    """
    folder = (root or Path(sys.prefix) / _LLAMA.replace("_", ".")) / kind
    return folder if kind in BUILDS and folder.is_dir() else None


def llama_environ(kind: str, root: Path | None = None) -> Mapping[str, str]:
    """Returns the variables of workers that compute on `kind`; empty: the installed llama.cpp."""
    folder = llama_library(kind, root)
    return {VARIABLE: str(folder), PICTURES: str(folder)} if folder else {}


async def llama_devices(root: Path | None = None) -> RuntimeDevices:
    """Finds the devices that llama.cpp can use: those of each build, and those of the installed library. Never raises.

    A build is asked only for its own kind, because its workers use only that.
    """
    builds = [kind for kind in BUILDS if llama_library(kind, root)]
    installed, *others = await asyncio.gather(
        probe(_LLAMA), *(probe(_LLAMA, environ=llama_environ(kind, root)) for kind in builds)
    )
    of_kind = dict.fromkeys(KINDS[_LLAMA], installed) | dict(zip(builds, others, strict=True))
    devices = tuple(each for kind, found in of_kind.items() for each in found.devices if each.kind == kind)
    usable = {device.kind for device in devices}
    missing = {kind: why for kind, found in of_kind.items() if kind not in usable and (why := found.missing.get(kind))}
    versions = {of_kind[kind].version: None for kind in KINDS[_LLAMA] if kind in usable} or {installed.version: None}
    return RuntimeDevices(_LLAMA, ", ".join(versions), devices, missing)
