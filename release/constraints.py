"""Constraints with hashes: every package that an extra installs on a supported platform, at the pinned version.

uv resolves for all platforms at once, from the names and versions of constraints.txt, and takes the hashes of all files
of a version from the index. pip only resolves for the machine that it runs on.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from packaging.markers import Marker
from packaging.utils import canonicalize_name

# vllm needs other releases of what `text` needs, and an environment of its own. dev is for a clone.
LEFT_OUT = {"dev", "vllm"}
OLDEST_PYTHON = "3.11"
PYTHONS = ("3.11.2", "3.11.13", "3.12.11", "3.13.5", "3.14.0")  # before 3.11.3, redis needs a package more
PLATFORMS = (("linux", "Linux", "x86_64"), ("linux", "Linux", "aarch64"), ("darwin", "Darwin", "arm64"))
TOOLS = Path(__file__).with_name("tools.txt")
_ENTRY = re.compile(
    r"^([a-z0-9._-]+)==(\S+)(?: ; (.+?))? \\\n((?:    --hash=\S+(?: \\)?\n)+)    # via (.+)$", re.MULTILINE
)


class NotPinned(Exception):
    """The closure cannot be resolved from constraints.txt alone; the message names the packages."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package of the closure."""

    name: str  # in the index's normal form
    version: str
    marker: str  # the environments that need it; empty: all
    hashes: tuple[str, ...]  # sha256 of each file of the version, in hexadecimal
    parents: tuple[str, ...]  # the packages that require it

    def lines(self) -> str:
        """Returns its requirement, as pip reads it."""
        return requirement(f"{self.name}=={self.version}", self.hashes, self.marker)


def requirement(pinned: str, hashes: Iterable[str], marker: str = "") -> str:
    """Returns a requirement with hashes, as pip reads it."""
    head = f"{pinned} ; {marker}" if marker else pinned
    return " \\\n    ".join((head, *(f"--hash=sha256:{each}" for each in sorted(hashes)))) + "\n"


def closure(source: Path) -> list[Package]:
    """Returns what the extras of the project in `source` need, by name.

    Raises:
        NotPinned: constraints.txt lacks a package, or its versions do not fit together.
    """
    with (source / "pyproject.toml").open("rb") as file:
        extras = sorted(tomllib.load(file)["project"]["optional-dependencies"].keys() - LEFT_OUT)
    packages = [each for each in parsed(_resolve(source, extras)) if served(each.marker)]
    pinned = {canonicalize_name(line.partition("==")[0]) for line in _pins(source)}
    if loose := [f"{each.name}=={each.version}" for each in packages if each.name not in pinned]:
        raise NotPinned(f"constraints.txt does not pin {', '.join(loose)}")
    return packages


def _pins(source: Path) -> list[str]:
    """Returns the lines of constraints.txt, and pip's of the tools: llm requires pip, but `make` leaves pip alone."""
    ours = (source / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [*ours, *re.findall(r"^pip==\S+", TOOLS.read_text(encoding="utf-8"), re.MULTILINE)]


def _resolve(source: Path, extras: Iterable[str]) -> str:
    pins = source / "release-pins.txt"
    pins.write_text("\n".join(_pins(source)), encoding="utf-8")
    command: list[str] = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "pyproject.toml", "--quiet"]
    command += ["--constraint", pins.name, "--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes"]
    command += ["--no-header", "--annotation-style", "line", "--no-config"]
    command += [word for extra in extras for word in ("--extra", extra)]
    done = subprocess.run(command, cwd=source, env=_environ(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPinned(f"the pins do not fit together: {done.stderr.strip()}")
    return done.stdout


def _environ() -> Mapping[str, str]:
    """Returns the environment with pip's index and certificates for uv, which has settings of its own.

    Only the index itself: further sources, such as a folder of wheels, are this machine's.
    """
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found = dict(re.findall(r"^(?:global|install|:env:)\.(index-url|cert)='(.*)'$", listed, re.MULTILINE))
    names = {"index-url": "UV_DEFAULT_INDEX", "cert": "SSL_CERT_FILE"}
    return {**{names[key]: value for key, value in found.items()}, **os.environ}


def parsed(text: str) -> Iterator[Package]:
    """Yields the packages that uv has resolved. Raises ValueError for text that is not as expected."""
    entries = _ENTRY.findall(text)
    if len(entries) != len(re.findall(r"^[^\s#]", text, re.MULTILINE)):
        raise ValueError("uv's answer has entries without hashes or origin")
    for name, version, marker, hashes, parents in entries:
        known = (each.partition(" (")[0] for each in parents.split(", ") if not each.startswith("-c "))
        yield Package(name, version, marker, tuple(re.findall(r"sha256:(\w+)", hashes)), tuple(known))


def served(marker: str) -> bool:
    """Returns whether a platform that allm runs on needs a package with this marker."""
    return not marker or any(
        Marker(marker).evaluate(
            {
                "python_full_version": python,
                "python_version": python.rpartition(".")[0],
                "sys_platform": platform,
                "platform_system": system,
                "platform_machine": machine,
                "os_name": "posix",
                "implementation_name": "cpython",
                "platform_python_implementation": "CPython",
            }
        )
        for python, (platform, system, machine) in product(PYTHONS, PLATFORMS)
    )
