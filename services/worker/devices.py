"""The devices that a runtime can use: found in a process with the interpreter and the environment of its workers.

`python -m services.worker.devices RUNTIME` prints a RuntimeDevices as JSON. The service must not import a runtime's
library itself, and a broken GPU library may kill the process that loads it.

Oldest NVIDIA drivers on Linux, for every minor version of a CUDA major version: 580 for 13, 525 for 12, 450 for 11
(https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

KINDS: Mapping[str, tuple[str, ...]] = {  # runtime -> the kinds of GPU that it can be built for, best first
    "llama_cpp": ("cuda", "vulkan", "mps"),
    "torch": ("cuda", "mps"),
    "vllm": ("cuda",),
    "faster_whisper": ("cuda",),
    "whisper": ("cuda", "mps"),
    "diffusers": ("cuda", "mps"),
}
PACKAGES: Mapping[str, str] = {  # runtime -> the distribution that computes
    "llama_cpp": "llama-cpp-python",
    "torch": "torch",
    "vllm": "vllm",
    "faster_whisper": "ctranslate2",
    "whisper": "torch",
    "diffusers": "torch",
}
VISIBLE_VULKAN = "GGML_VK_VISIBLE_DEVICES"  # llama.cpp's own variable; it may name a software device
OLDEST_DRIVER = {13: 580, 12: 525, 11: 450}  # major version of CUDA -> major version of the driver
SECONDS = 90.0  # importing torch from a cold disk and initialising a GPU take tens of seconds
_DRIVER = Path("/proc/driver/nvidia/version")
_NVIDIA = (_DRIVER, Path("/dev/nvidiactl"), Path("/dev/dxg"))  # the last is WSL's
_RENDER = tuple(Path(f"/dev/dri/renderD{number}") for number in range(128, 144))
_AMD = Path("/dev/kfd")
_CUBLAS = "libcublas.so.12"  # CTranslate2 opens it when it first multiplies
_LIBRARY_PATH = "LD_LIBRARY_PATH"
_MAX_TEXT = 400  # characters of a library's own words in a reason


class FoundDevice(msgspec.Struct, frozen=True):
    """A GPU that a runtime can use. Memory is in bytes."""

    kind: str  # cuda, vulkan or mps
    name: str  # the worker's name: `cuda:0`, `vulkan:0`, `mps`
    description: str
    total: int = 0  # 0: cannot be read
    free: int = 0
    bus: str = ""  # PCI address such as `0000:c1:00.0`; empty: unknown
    shares_host: bool = False  # its memory is the host's
    packs: bool = False  # whether the experts of gpt-oss stay packed in MXFP4 there


class RuntimeDevices(msgspec.Struct, frozen=True):
    """The GPUs of one runtime."""

    runtime: str
    version: str = ""  # of its library; empty: unknown
    devices: tuple[FoundDevice, ...] = ()  # best first
    missing: dict[str, str] = {}  # kind -> why it cannot be used here, with the remedy

    def first(self, kind: str) -> FoundDevice | None:
        """Returns the best device of a kind."""
        return next((device for device in self.devices if device.kind == kind), None)


async def probe(
    runtime: str, *, python: str = "", environ: Mapping[str, str] | None = None, seconds: float = SECONDS
) -> RuntimeDevices:
    """Finds the devices that a runtime can use. Never raises but on cancellation.

    If the machine shows no sign of a GPU that the runtime could use, no process is started.

    Args:
        runtime: a key of KINDS.
        python: the interpreter of the runtime's workers; empty: this one.
        environ: variables of these workers, in addition to our own.
        seconds: time limit.
    """
    environ = {**os.environ, **(environ or {})}
    absent = {kind: why for kind in KINDS[runtime] if (why := no_sign_of(kind, environ))}
    if len(absent) == len(KINDS[runtime]):
        return RuntimeDevices(runtime, "" if python else _version(runtime), (), absent)
    try:
        found = await _asked(runtime, python or sys.executable, environ, seconds)
    except _ProbeFailed as problem:
        found = RuntimeDevices(runtime, "", (), dict.fromkeys(KINDS[runtime], str(problem)))
    usable = {device.kind for device in found.devices}
    missing = {kind: absent.get(kind) or why for kind, why in found.missing.items() if kind not in usable}
    return RuntimeDevices(runtime, found.version, found.devices, missing)


def no_sign_of(kind: str, environ: Mapping[str, str]) -> str:
    """Returns why the machine cannot have a device of this kind; empty if it may have one. Takes microseconds."""
    if kind == "mps":
        return "" if _is_apple() else "this machine has no Apple silicon"
    if kind == "cuda":
        return "" if _any_exists(*_NVIDIA) else "no NVIDIA driver is loaded here (a container needs --gpus all)"
    if VISIBLE_VULKAN in environ or _any_exists(*_NVIDIA, *_RENDER, _AMD):
        return ""
    return "no GPU is visible here: there is neither a render node in /dev/dri nor an NVIDIA driver"


def nvidia_driver() -> str:
    """Returns the version of the NVIDIA driver, such as `580.65.06`; empty if none is loaded."""
    with contextlib.suppress(Exception):  # no pynvml in this interpreter, or no library of the driver
        import pynvml  # noqa: PLC0415

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    with contextlib.suppress(OSError):
        found = re.search(r"\b(\d{3,}\.\d+(\.\d+)?)\b", _DRIVER.read_text(encoding="ascii", errors="replace"))
        return found[1] if found else ""
    return ""


def cublas_environ() -> Mapping[str, str]:
    """Returns the variables with which CTranslate2 finds cuBLAS in the package nvidia-cublas-cu12, if it is installed
    here; torch's own cuBLAS may be of another version of CUDA.
    """
    folder = Path(sysconfig.get_path("purelib")) / "nvidia" / "cublas" / "lib"
    if not (folder / _CUBLAS).exists():
        return {}
    own = os.environ.get(_LIBRARY_PATH, "")
    return {_LIBRARY_PATH: f"{folder}:{own}" if own else str(folder)}


def driver_problem(built_for: str, cuda: int, driver: str) -> str:
    """Returns why this driver cannot run a library that is built for a major version of CUDA; empty if it can.

    `built_for`: the library's name and version, for the message; `cuda`: 0 if unknown; `driver`: empty if none.
    """
    if not driver:
        return "the NVIDIA driver does not answer: reinstall it, or pass the GPU to this container (--gpus all)"
    oldest, major = OLDEST_DRIVER.get(cuda, 0), driver.partition(".")[0]
    if not major.isdecimal() or int(major) >= oldest:
        return ""
    return (
        f"the NVIDIA driver {driver} is too old: {built_for} needs {oldest} or newer (CUDA {cuda}): update the driver"
    )


# --- our side of the process


class _ProbeFailed(Exception):
    """The process gave no answer; the message says why."""


async def _asked(runtime: str, python: str, environ: Mapping[str, str], seconds: float) -> RuntimeDevices:
    try:
        process = await asyncio.create_subprocess_exec(
            python,
            "-m",
            __spec__.name,
            runtime,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        )
    except OSError as error:
        raise _ProbeFailed(f"{python} cannot be started: {error.strerror or error}") from error
    try:
        out, err = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        raise _ProbeFailed(f"{runtime} did not report within {seconds:g} seconds which devices it can use") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        return msgspec.json.decode(out, type=RuntimeDevices)
    except msgspec.DecodeError:
        last = _short(err.decode(errors="replace").strip().rpartition("\n")[2])
        code = process.returncode
        raise _ProbeFailed(f"asking {runtime} for its devices failed (exit code {code}): {last}") from None


def _any_exists(*paths: Path) -> bool:
    return any(path.exists() for path in paths)


def _is_apple() -> bool:
    return sys.platform == "darwin" and platform.machine() == "arm64"


def _version(runtime: str) -> str:
    """Returns the version of a runtime's library in this interpreter; empty if it is not installed."""
    try:
        return f"{PACKAGES[runtime]} {importlib.metadata.version(PACKAGES[runtime])}"
    except importlib.metadata.PackageNotFoundError:
        return ""


def _short(text: object) -> str:
    return " ".join(str(text).split())[:_MAX_TEXT]


# --- inside the process


def _llama_cpp() -> RuntimeDevices:
    try:
        from services.worker import ggml_devices as ggml  # noqa: PLC0415
    except (ImportError, OSError, RuntimeError) as error:
        return _unusable("llama_cpp", f"llama.cpp cannot be loaded: {_short(error)}")
    found = ggml.ggml_devices()
    built = [ggml.KINDS[name] for name in ggml.ggml_backends() if name in ggml.KINDS]
    version = f"{_version('llama_cpp')} ({', '.join(built) or 'cpu'} build)"
    devices = tuple(
        FoundDevice(kind, f"{kind}:{index}" if kind != "mps" else kind, *_figures(device))
        for kind in KINDS["llama_cpp"]
        for index, device in enumerate(each for each in found if each.kind == kind)
    )
    reasons = {
        "cuda": driver_problem("llama.cpp", ggml.cuda_version() // 1000, nvidia_driver())
        or "llama.cpp finds no usable NVIDIA GPU",
        "vulkan": "llama.cpp finds no GPU with a Vulkan driver: install the GPU's Vulkan driver",
        "mps": "llama.cpp finds no Metal device",
    }
    remedies = {"cuda": build_command("cuda"), "vulkan": build_command("vulkan"), "mps": "reinstall llama-cpp-python"}
    usable = {device.kind for device in devices}
    missing = {
        kind: reasons[kind] if kind in built else f"llama.cpp is built without {kind}: {remedies[kind]}"
        for kind in KINDS["llama_cpp"]
        if kind not in usable
    }
    return RuntimeDevices("llama_cpp", version, devices, missing)


def build_command(kind: str) -> str:
    """Returns the command that builds llama.cpp for `cuda` or `vulkan`: make's in a clone, else that of the wheel."""
    clone = (Path(__file__).parents[2] / "Makefile").exists()
    return f"make llama-{kind}" if clone else f"{sys.executable} -m containers.llama_build {kind}"


def _figures(device: Any) -> tuple[str, int, int, str, bool]:
    return device.description, device.total, device.free, device.bus, device.shares_host


def _of_torch(runtime: str) -> RuntimeDevices:
    try:
        import torch  # noqa: PLC0415
    except (ImportError, OSError) as error:
        return _unusable(runtime, f"torch cannot be loaded: {_short(error)}")
    version = f"torch {torch.__version__}"
    devices: tuple[FoundDevice, ...] = ()
    missing: dict[str, str] = {}
    if problem := _torch_cuda_problem(torch, version):
        missing["cuda"] = problem
    else:
        devices = tuple(_torch_gpu(torch, index) for index in range(torch.cuda.device_count()))
    if torch.backends.mps.is_available():
        total = int(torch.mps.recommended_max_memory())
        devices += (FoundDevice("mps", "mps", "Apple Metal", total, total, shares_host=True),)
    elif torch.backends.mps.is_built():
        missing["mps"] = "torch needs a newer macOS for Metal"
    else:
        missing["mps"] = f"{version} is built without Metal"
    missing = {kind: why for kind, why in missing.items() if kind in KINDS[runtime]}
    return RuntimeDevices(runtime, version, tuple(d for d in devices if d.kind in KINDS[runtime]), missing)


def _torch_cuda_problem(torch: Any, version: str) -> str:
    """Returns why torch cannot compute on an NVIDIA GPU; empty if it just has, on the first one."""
    if getattr(torch.version, "hip", None):
        return f"{version} is built for ROCm, which allm does not use: AMD GPUs compute with llama.cpp on Vulkan"
    if not torch.version.cuda:
        return f"{version} is built without CUDA: install the CUDA build of the same version"
    if problem := driver_problem(version, int(torch.version.cuda.partition(".")[0]), nvidia_driver()):
        return problem
    try:
        torch.ones(1, device="cuda").add(1).cpu()  # fails where the build has no kernels for the GPU
    except Exception as error:
        return f"{version} cannot compute on the NVIDIA GPU: {_short(error)}"
    return ""


def _torch_gpu(torch: Any, index: int) -> FoundDevice:
    free, total = torch.cuda.mem_get_info(index)
    about = torch.cuda.get_device_properties(index)
    shares = bool(getattr(about, "is_integrated", False))
    packs = about.major >= 8 and importlib.util.find_spec("triton") is not None  # as packed_experts.py needs it
    name = f"cuda:{index}"
    return FoundDevice("cuda", name, str(about.name), int(total), int(free), shares_host=shares, packs=packs)


def _vllm() -> RuntimeDevices:
    version = _version("vllm")
    if not version:
        return _unusable("vllm", "vLLM is not installed in this interpreter")
    if "cpu" in version:
        return _unusable("vllm", f"{version} is built for the processor: install vLLM's CUDA build", version)
    found = _of_torch("vllm")
    return RuntimeDevices("vllm", version, found.devices, found.missing)


def _faster_whisper() -> RuntimeDevices:
    try:
        import ctranslate2  # noqa: PLC0415
    except (ImportError, OSError) as error:
        return _unusable("faster_whisper", f"CTranslate2 cannot be loaded: {_short(error)}")
    version = f"ctranslate2 {ctranslate2.__version__}"
    try:
        count = ctranslate2.get_cuda_device_count()
        types = ctranslate2.get_supported_compute_types("cuda") if count else ()
    except (RuntimeError, ValueError) as error:
        return _unusable("faster_whisper", driver_problem(version, 12, nvidia_driver()) or _short(error), version)
    if not types:
        problem = driver_problem(version, 12, nvidia_driver()) or "CTranslate2 finds no usable NVIDIA GPU"
        return _unusable("faster_whisper", problem, version)
    try:
        ctypes.CDLL(_CUBLAS)
    except OSError as error:
        why = f"{version} needs cuBLAS of CUDA 12 ({_short(error)}): pip install nvidia-cublas-cu12"
        return _unusable("faster_whisper", why, version)
    return RuntimeDevices("faster_whisper", version, tuple(_nvml_gpu(index) for index in range(count)), {})


def _nvml_gpu(index: int) -> FoundDevice:
    """Reads a GPU by NVML, because CTranslate2 tells no memory. CUDA_VISIBLE_DEVICES may number GPUs otherwise."""
    name = f"cuda:{index}"
    with contextlib.suppress(Exception):
        import pynvml  # noqa: PLC0415

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return FoundDevice("cuda", name, str(pynvml.nvmlDeviceGetName(handle)), int(memory.total), int(memory.free))
    return FoundDevice("cuda", name, "NVIDIA GPU")


def _unusable(runtime: str, why: str, version: str = "") -> RuntimeDevices:
    return RuntimeDevices(runtime, version or _version(runtime), (), dict.fromkeys(KINDS[runtime], why))


_FINDERS: Mapping[str, Callable[[], RuntimeDevices]] = {
    "llama_cpp": _llama_cpp,
    "torch": lambda: _of_torch("torch"),
    "vllm": _vllm,
    "faster_whisper": _faster_whisper,
    "whisper": lambda: _of_torch("whisper"),
    "diffusers": lambda: _of_torch("diffusers"),
}


def main() -> None:
    """Prints the devices of the runtime that the first argument names."""
    answer = os.dup(1)
    os.dup2(2, 1)  # libraries may print
    found = _FINDERS[sys.argv[1]]()
    os.write(answer, msgspec.json.encode(found))


if __name__ == "__main__":
    main()
