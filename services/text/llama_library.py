"""The builds of llama.cpp for GPUs, which stand beside the installed one for the processor.

The folder `<root>/<kind>` holds one build: libllama and the libggml libraries that belong to it. It is renamed into
place when it is complete. Workers load it instead of the installed one if LLAMA_CPP_LIB_PATH names it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from services.worker.devices import KINDS, RuntimeDevices, probe

VARIABLE = "LLAMA_CPP_LIB_PATH"
BUILDS = ("cuda", "vulkan")
_NAME = "llama_cpp"


def llama_library(kind: str, root: Path | None = None) -> Path | None:
    """Returns the folder of llama.cpp's build for `cuda` or `vulkan`; None if there is none.

    `root`: the folder of the builds (ALLM_LLAMA_LIBRARIES); None: `llama.cpp` in this Python environment.
    """
    folder = (root or Path(sys.prefix) / _NAME.replace("_", ".")) / kind
    return folder if kind in BUILDS and folder.is_dir() else None


def llama_environ(kind: str, root: Path | None = None) -> Mapping[str, str]:
    """Returns the variables of workers that compute on `kind`; empty: the installed llama.cpp."""
    folder = llama_library(kind, root)
    return {VARIABLE: str(folder)} if folder else {}


async def llama_devices(root: Path | None = None) -> RuntimeDevices:
    """Finds the devices that llama.cpp can use: those of each build, and those of the installed library. Never raises.

    A build is asked only for its own kind, because its workers use only that.
    """
    builds = [kind for kind in BUILDS if llama_library(kind, root)]
    installed, *others = await asyncio.gather(
        probe(_NAME), *(probe(_NAME, environ=llama_environ(kind, root)) for kind in builds)
    )
    of_kind = dict.fromkeys(KINDS[_NAME], installed) | dict(zip(builds, others, strict=True))
    devices = tuple(each for kind, found in of_kind.items() for each in found.devices if each.kind == kind)
    usable = {device.kind for device in devices}
    missing = {kind: why for kind, found in of_kind.items() if kind not in usable and (why := found.missing.get(kind))}
    versions = {of_kind[kind].version: None for kind in KINDS[_NAME] if kind in usable} or {installed.version: None}
    return RuntimeDevices(_NAME, ", ".join(versions), devices, missing)
