"""A build of llama.cpp's own server from the source distribution of the installed llama-cpp-python.

    python -m bench.llama_server

Both sides of a comparison then run the same code, compiled by the same compiler with the same flags: a release build
for this machine's CPU, with the `CMAKE_ARGS` of llama-cpp-python itself. The build omits TLS, the web UI and the tests,
which the comparison does not need. It runs once for each version, below `bench/.build/`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import files, version
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import Progress

from bench.contender import BUILD_DIR

_PACKAGE = "llama-cpp-python"
_FIXES = Path(__file__).parent.parent / "containers" / "llama_fixes.h"
_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",  # scikit-build-core's default, which the wheel was built with
    "BUILD_SHARED_LIBS": "ON",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_UI": "OFF",  # needs npm
    "LLAMA_USE_PREBUILT_UI": "OFF",  # downloads it
    "LLAMA_OPENSSL": "OFF",
}
_STEP = re.compile(r"^\[\s*(\d+)(?:/(\d+)|%)\]")  # ninja's [12/212] or make's [ 12%]


class BuildError(Exception):
    """llama-server could not be built."""


def build(console: Console) -> Path:
    """Returns the path of the server's binary; builds it if it is missing.

    Raises:
        BuildError: a step failed; the message names its log.
    """
    release = version(_PACKAGE)
    folder = BUILD_DIR / f"llama_cpp_python-{release}-{hashlib.sha256(_FIXES.read_bytes()).hexdigest()[:8]}-server"
    binary = folder / "bin" / "llama-server"
    if binary.exists():
        return binary
    BUILD_DIR.mkdir(parents=True, exist_ok=True)
    tools = _tools(console)
    source = _source(release, console)
    console.print(f"Building llama-server of {_PACKAGE} {release}: several minutes, once")
    options = [f"-D{name}={value}" for name, value in _OPTIONS.items()]
    # The wheel's own flags come last, so they take precedence.
    own = [f"-DCMAKE_CXX_FLAGS=-include {_FIXES}", *shlex.split(os.environ.get("CMAKE_ARGS", ""))]
    _run(
        [tools["cmake"], "-S", str(source), "-B", str(folder), *_generator(tools), *options, *own], "configure", console
    )
    jobs = str(len(os.sched_getaffinity(0)))
    _run([tools["cmake"], "--build", str(folder), "--target", "llama-server", "-j", jobs], "build", console)
    return binary


def installed_library() -> Path:
    """Returns the native library inside the installed llama-cpp-python."""
    for member in files(_PACKAGE) or []:
        if member.parts[0] == "llama_cpp" and member.name in ("libllama.so", "libllama.dylib"):
            return Path(str(member.locate()))
    raise BuildError(f"{_PACKAGE} is installed without its native library")


def compute_features(library: Path) -> str:
    """Returns the CPU features for which a build of llama.cpp was compiled, as it reports them."""
    # In a separate process, because two builds of one library conflict in the same process.
    script = "import ctypes, sys; ask = ctypes.CDLL(sys.argv[1]).llama_print_system_info; "
    script += "ask.restype = ctypes.c_char_p; print(ask().decode())"
    done = subprocess.run([sys.executable, "-c", script, str(library)], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _generator(tools: dict[str, str]) -> list[str]:
    return ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools['ninja']}"]


def _tools(console: Console) -> dict[str, str]:
    """Returns the paths of cmake and ninja: the machine's own or those of their wheels."""
    names = ("cmake", "ninja")
    found = {name: path for name in names if (path := shutil.which(name))}
    if len(found) < len(names):
        folder = BUILD_DIR / "tools"
        if not all((folder / "bin" / name).exists() for name in names):
            _run([sys.executable, "-m", "pip", "install", "--target", str(folder), *names], "tools", console)
        os.environ["PYTHONPATH"] = str(folder)  # the wheels' scripts import their own package
        found = {name: str(folder / "bin" / name) for name in names}
    return found


def _source(release: str, console: Console) -> Path:
    """Returns the folder of llama.cpp's source; downloads and unpacks it if it is missing."""
    unpacked = BUILD_DIR / f"llama_cpp_python-{release}"
    if not unpacked.exists():
        archive = BUILD_DIR / "sdist" / f"llama_cpp_python-{release}.tar.gz"
        if not archive.exists():
            download = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", _PACKAGE]
            _run([*download, "--dest", str(archive.parent), f"{_PACKAGE}=={release}"], "download", console)
        partial = unpacked.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(archive) as members:
            members.extractall(partial, filter="data")
        (partial / unpacked.name).rename(unpacked)
        partial.rmdir()
    return unpacked / "vendor" / "llama.cpp"


def _run(arguments: list[str], step: str, console: Console) -> None:
    """Runs one step of the build with a progress bar; writes its output to a log."""
    log = BUILD_DIR / "logs" / f"llama-server-{step}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with Progress(console=console) as progress, log.open("w", encoding="utf-8") as lines:
        task = progress.add_task(step, total=None)
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None  # noqa: S101 - requested in the call above
        for line in process.stdout:
            lines.write(line)
            if found := _STEP.match(line):
                progress.update(task, completed=int(found[1]), total=int(found[2] or 100))
        if process.wait():
            raise BuildError(f"llama-server: the step {step!r} failed; see {log}")
        progress.update(task, completed=1, total=1)


def main() -> None:
    """Builds llama-server if necessary and prints its path."""
    console = Console()
    console.print(str(build(console)))


if __name__ == "__main__":
    typer.run(main)
