"""The GPUs that the loaded llama.cpp can compute on, by the device API of its ggml library.

The probe (devices.py) and llama.cpp's workers use the same list, so that `vulkan:0` is the same device for both.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import llama_cpp.llama_cpp as bindings

# The name of a backend in ggml -> our kind of device.
KINDS = {"CUDA": "cuda", "Vulkan": "vulkan", "MTL": "mps", "Metal": "mps"}
_GPU, _INTEGRATED = 1, 2  # enum ggml_backend_dev_type
_SOFTWARE = ("llvmpipe", "SwiftShader")  # Vulkan devices that compute on the processor, in host memory


class _Properties(ctypes.Structure):
    """struct ggml_backend_dev_props; the padding leaves room for later fields."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("free", ctypes.c_size_t),
        ("total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("bus", ctypes.c_char_p),
        ("padding", ctypes.c_char * 256),
    )


@dataclass(frozen=True, slots=True)
class GgmlDevice:
    """One GPU. Memory is in bytes."""

    handle: int  # ggml_backend_dev_t
    kind: str
    description: str
    total: int
    free: int
    bus: str  # PCI address such as `0000:c1:00.0`; empty: unknown
    shares_host: bool  # its memory is the host's


def ggml_devices() -> list[GgmlDevice]:
    """Returns the GPUs, discrete ones first. The first call initialises the GPU libraries, which takes a while.

    Raises AttributeError if the library has no such API.
    """
    count = ggml_function("ggml_backend_dev_count", ctypes.c_size_t)
    get = ggml_function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    found = [device for index in range(count()) if (device := _read(get(index)))]
    return sorted(found, key=lambda device: device.shares_host)  # stable


def ggml_backends() -> list[str]:
    """Returns the names of the backends that the library was built with, such as `CUDA` and `CPU`."""
    count = ggml_function("ggml_backend_reg_count", ctypes.c_size_t)
    get = ggml_function("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t)
    name = ggml_function("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)
    return [name(get(index)).decode(errors="replace") for index in range(count())]


def cuda_version() -> int:
    """Returns the version of the CUDA runtime that the library is linked with, such as 13020; 0 if unknown."""
    version = ctypes.c_int(0)
    try:
        ggml_function("cudaRuntimeGetVersion", ctypes.c_int, ctypes.c_void_p)(ctypes.byref(version))
    except AttributeError:  # linked statically, or without CUDA
        return 0
    return version.value


def _read(handle: int) -> GgmlDevice | None:
    """Reads a device; None for processors, accelerators and backends that are not ours."""
    registry = ggml_function("ggml_backend_dev_backend_reg", ctypes.c_void_p, ctypes.c_void_p)(handle)
    name = ggml_function("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)(registry).decode(errors="replace")
    kind = KINDS.get(name)
    device_type = ggml_function("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)(handle)
    if kind is None or device_type not in (_GPU, _INTEGRATED):
        return None
    seen = _Properties()
    ggml_function("ggml_backend_dev_get_props", None, ctypes.c_void_p, ctypes.c_void_p)(handle, ctypes.byref(seen))
    description = (seen.description or b"").decode(errors="replace")
    return GgmlDevice(
        handle=handle,
        kind=kind,
        description=description,
        total=seen.total,
        free=min(seen.free, seen.total),
        bus=(seen.bus or b"").decode(errors="replace"),
        shares_host=device_type == _INTEGRATED or kind == "mps" or description.startswith(_SOFTWARE),
    )


def ggml_function(name: str, result: Any, *arguments: Any) -> Any:
    """Returns a function of ggml. Raises AttributeError if the library has none of this name."""
    function = getattr(bindings._lib, name)  # its dependencies, libggml and libggml-base, are searched, too
    function.restype, function.argtypes = result, arguments
    return function
