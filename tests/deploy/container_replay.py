"""Replays a Dockerfile without a container engine: `python -m tests.deploy.container_replay [IMAGE...]`.

Its RUN steps run as a user who is not root, in an empty folder that stands for the image's root, with only pip's
package sources from this machine's environment; then its command runs as it would in a container, its health check is
evaluated, and its stop signal is sent. The base image, apt-get and the creation of the user are not replayed: those
steps are printed, and the machine must have the packages that they install.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pip

from tests.deploy.dockerfile import IMAGES, Dockerfile, assignments, expand, read
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".venv" / "container-pip-cache"
USER = 10001
START_SECONDS = 120
STOP_SECONDS = 60
NOT_REPLAYED = ("apt-get", "groupadd")
TEMPORARY = "/tmp"  # noqa: S108 (below the folder that stands for the root)
# Folders of an image's root; here they lie below the folder that stands for it.
PLACES = re.compile(r"(?<![\w.\"/])/(opt/allm|opt/vllm|src|wheels|models|pictures|var/lib/allm)\b")


class Replay:
    """The replay of one image."""

    def __init__(self, image: str, root: Path, arguments: Mapping[str, str] | None = None) -> None:
        self.image, self.root = image, root
        self.arguments = dict(arguments or {})
        self.file: Dockerfile = read(image, arguments)
        self.not_replayed: list[str] = []  # steps that were not replayed
        self._bin = root / "base"
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            self._as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]

    def build(self) -> None:
        """Runs the steps of all stages that the image needs."""
        self._base()
        values: dict[str, dict[str, str]] = {}  # stage -> its environment
        for stage in self.file.needed():
            environ = dict(values.get(stage.start, {}))
            folder = "/"
            given: dict[str, str] = {}
            for name, rest in stage.steps:
                if name == "ENV":
                    environ |= assignments(rest)
                elif name == "ARG":
                    known = {**self.file.arguments, **assignments(rest), **self.arguments, **_pip_arguments()}
                    key = rest.partition("=")[0]
                    given |= {key: known[key]} if key in known else {}
                elif name == "WORKDIR":
                    folder = rest
                    self._make(folder)
                elif name == "COPY":
                    self._copy(rest, folder)
                elif name == "RUN":
                    self._run(rest, folder, {**given, **environ})
            values[stage.name] = environ
        for place in ("/var/lib/allm", "/models", "/pictures", TEMPORARY):
            self._make(place)
        if self._as_user:  # as in a container, the user does not own the installed files
            subprocess.run(["chown", "--recursive", "0:0", self._place("/opt")], check=True)

    def serve(self, extra: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Starts the image's command. `extra`: as `docker run --env`."""
        environ = {**self._clean(), **self._environment(), **extra}
        command, folder = [*self._as_user, *self.file.command()], self._place(self.file.last("WORKDIR"))
        with (self.root / "output.txt").open("wb") as output:
            return subprocess.Popen(command, env=environ, cwd=folder, stdout=output, stderr=subprocess.STDOUT)

    def is_healthy(self, extra: Mapping[str, str]) -> bool:
        """Runs the image's health check."""
        environ = {**self._clean(), **self._environment(), **extra}
        command = [*self._as_user, *self.file.health()]
        return subprocess.run(command, env=environ, cwd=self.root, capture_output=True, check=False).returncode == 0

    def output(self) -> str:
        """Returns the command's output."""
        return (self.root / "output.txt").read_text()

    def _environment(self) -> dict[str, str]:
        found = {name: self._placed(value) for name, value in self.file.environment().items()}
        return {**found, "PATH": expand(found["PATH"], {"PATH": self._clean()["PATH"]})}

    def _clean(self) -> dict[str, str]:
        return {"PATH": f"{self._bin}:/usr/bin:/bin", "LANG": "C.UTF-8", "TMPDIR": str(self._place(TEMPORARY))}

    def _base(self) -> None:
        """Creates the stand-in for the base image: `python` and pip."""
        self._bin.mkdir(parents=True)
        for name in ("python", "python3"):
            script = self._bin / name
            script.write_text(f'#!/bin/sh\nPYTHONPATH={self._bin}/packages exec {_python(self._as_user)} "$@"\n')
            script.chmod(0o755)
        shutil.copytree(Path(pip.__file__).parent, self._bin / "packages" / "pip")
        CACHE.mkdir(parents=True, exist_ok=True)
        if self._as_user:
            shutil.chown(self.root, USER, USER)
            shutil.chown(CACHE, USER, USER)
        self._make(TEMPORARY)

    def _make(self, place: str) -> None:
        folder = self._place(place)
        folder.mkdir(parents=True, exist_ok=True)
        if self._as_user:
            for each in (folder, *folder.parents):
                if each.is_relative_to(self.root):
                    shutil.chown(each, USER, USER)

    def _copy(self, rest: str, folder: str) -> None:
        words = rest.split()
        if words[0].startswith("--from="):
            assert words[1] == words[2], f"{rest}: all stages share one root here, so it must be the same place"
            assert self._place(words[1]).exists(), rest
            return
        target = self._place(words[-1] if words[-1].startswith("/") else f"{folder}/{words[-1]}")
        target.mkdir(parents=True, exist_ok=True)
        for source in context() if words[0] == "." else map(Path, words[:-1]):
            place = target / (source if words[0] == "." else source.name)  # a named file comes without its folder
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / source, place, ignore=ignore, dirs_exist_ok=True)
            else:
                shutil.copy(ROOT / source, place)
        if self._as_user:
            subprocess.run(["chown", "--recursive", f"{USER}:{USER}", target], check=True)

    def _run(self, rest: str, folder: str, environ: Mapping[str, str]) -> None:
        command = re.sub(r"--mount=\S+ ", "", rest).strip()
        if command.startswith(NOT_REPLAYED):
            self.not_replayed.append(command)
            return
        command = self._placed(command)
        clean = {**self._clean(), **_pip_arguments(), "PIP_CACHE_DIR": str(CACHE), "HOME": str(self.root), **environ}
        done = subprocess.run(
            [*self._as_user, "sh", "-c", command],
            env={name: expand(value, self._clean()) for name, value in clean.items()},
            cwd=self._place(folder),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"

    def _place(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _placed(self, text: str) -> str:
        return PLACES.sub(lambda found: f"{self.root}/{found[1]}", text)


def context() -> list[Path]:
    """Returns the build context, relative to ROOT: the exceptions of .dockerignore, which excludes everything else."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    return [Path(line[1:]) for line in lines if line.startswith("!")]


def _pip_arguments() -> dict[str, str]:
    """Returns this machine's pip settings, as a builder's pip.conf or arguments would set them."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        if key.startswith("global."):
            found.setdefault(f"PIP_{key.removeprefix('global.').replace('-', '_').upper()}", shlex.split(value)[0])
    return found


def _python(as_user: list[str]) -> str:
    """Returns a Python 3.11 or newer that the user may run; the user may not be allowed to run the tests' own."""
    versions = [f"python3.{minor}" for minor in range(11, 16)]
    candidates = [getattr(sys, "_base_executable", sys.executable), *(f"/usr/bin/{name}" for name in versions)]
    for candidate in candidates:
        # Through a shell: setpriv itself may still enter root's folders.
        command = [*as_user, "sh", "-c", 'exec "$0" -c "import venv"', candidate]
        with suppress(OSError):
            if subprocess.run(command, capture_output=True, check=False, cwd="/").returncode == 0:
                return candidate
    raise AssertionError("no Python 3.11 or newer here that a user other than root may run: install one into /usr/bin")


def environment(image: str) -> dict[str, str]:
    """Returns the variables for `docker run --env`, with free ports, since other programs run on this machine."""
    found = {"ALLM_METRICS_PORT": "0", "ALLM_DRAIN_DELAY_SECONDS": "0", "ALLM_DRAIN_SECONDS": "1"}
    if image == "allm":
        return {**found, "ALLM_PORT": str(free_port()), "ALLM_GATEWAY_METRICS_PORT": str(free_port())}
    if image == "gateway":
        return {**found, "ALLM_PORT": str(free_port()), "ALLM_GATEWAY_TEXT": "127.0.0.1:1"}
    return {**found, "ALLM_LISTEN": f"127.0.0.1:{free_port()}", "ALLM_HEALTH_LISTEN": f"127.0.0.1:{free_port()}"}


def replay(image: str, root: Path, arguments: Mapping[str, str] | None = None) -> Replay:
    """Builds an image, runs it until it is healthy, and stops it. Raises AssertionError on failure."""
    found = Replay(image, root, arguments)
    found.build()
    before = tree(root / "opt")
    extra = environment(image)
    process = found.serve(extra)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not found.is_healthy(extra):
            assert process.poll() is None, found.output()
            assert time.monotonic() < deadline, found.output()
            time.sleep(0.1)
        process.send_signal(getattr(signal, found.file.last("STOPSIGNAL")))
        assert process.wait(timeout=STOP_SECONDS) == 0, found.output()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert tree(root / "opt") == before, "a running container changed what is installed"
    return found


@contextmanager
def empty_root(image: str) -> Iterator[Path]:
    """A folder that stands for an image's root. Not one of pytest's, which other users cannot enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder).resolve() / image


def tree(folder: Path) -> dict[str, float]:
    """Returns every file below a folder with its modification time."""
    return {str(path): path.lstat().st_mtime for path in folder.rglob("*")}


def main(images: list[str]) -> None:
    """Replays images and prints the results."""
    for image in images or IMAGES:
        started = time.monotonic()
        with empty_root(image) as root:
            found = replay(image, root)
            installed = sum(path.lstat().st_size for path in (found.root / "opt").rglob("*") if path.is_file())
        seconds = time.monotonic() - started
        print(f"{image}: installed ({installed / 2**20:.0f} MiB), healthy, stopped; {seconds:.0f} s")
        for step in found.not_replayed:
            print(f"  not replayed: {step}")


if __name__ == "__main__":
    main(sys.argv[1:])
