"""Containers of a rendering as local processes: their commands and settings, with other addresses and paths."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from k8s.render import Object
from services.rpc.probe import NotServing, ask
from tests.deploy.renderings import containers, environment, pod_templates
from tests.ports import free_port

# Roots of paths in containers; each lies below the test's folder.
PATHS = re.compile(r"(?<![\w.])/(var/lib/allm|models|pictures|model-images|etc/allm|run/allm)\b")
PRIVATE = "/var/lib/allm"  # the only one of them that is private to each container


class PodProcesses:
    """Runs one process for each started container. `folder`: a short path, since it contains a Unix socket."""

    def __init__(self, objects: list[Object], folder: Path, namespace: str = "allm") -> None:
        self._folder, self._namespace = folder, namespace
        self._containers = {
            container["name"]: container for _, template in pod_templates(objects) for container in containers(template)
        }
        # container -> port in its Pod -> local port
        self._ports = {
            name: {port["containerPort"]: free_port() for port in container["ports"]}
            for name, container in self._containers.items()
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.redis_url = ""  # stands in for the Redis of the rendering

    def place(self, path: str) -> Path:
        """Returns the local path of a path that all containers share."""
        return self._folder / path.lstrip("/")

    def port(self, name: str, port: int) -> int:
        """Returns the local port of a container's port."""
        return self._ports[name][port]

    def environment(self, name: str) -> dict[str, str]:
        """Returns the container's environment, plus only PATH."""
        home = self._folder / "home" / name
        home.mkdir(parents=True, exist_ok=True)
        values = {"PATH": os.environ["PATH"], "ALLM_REPLICA": f"{name}-0", "ALLM_THREADS": "2"}
        for variable, value in environment(self._containers[name]).items():
            here = value.replace("$(POD_NAMESPACE)", self._namespace).replace(PRIVATE, str(home))
            here = PATHS.sub(lambda found: f"{self._folder}/{found[1]}", here)
            here = re.sub(r"\b0\.0\.0\.0\b", "127.0.0.1", here)
            here = re.sub(r"allm-(\w+):(\d+)", lambda found: f"127.0.0.1:{self.port(found[1], int(found[2]))}", here)
            here = re.sub(r"(127\.0\.0\.1):(\d+)", lambda found: f"{found[1]}:{self._own(name, int(found[2]))}", here)
            if variable.endswith("_PORT"):
                here = str(self._own(name, int(here)))
            values[variable] = self.redis_url if variable == "ALLM_REDIS_URL" else here
        return values

    def command(self, words: list[str]) -> list[str]:
        """Returns a container's command with the tests' Python."""
        python = Path(sys.executable)
        return [str(python) if words[0] == "python" else str(python.with_name(words[0])), *words[1:]]

    def start(self, name: str) -> None:
        """Starts a container's command."""
        output = (self._folder / f"{name}.txt").open("wb")
        command = self.command(self._containers[name]["command"])
        environ = self.environment(name)
        home = environ["ALLM_HOME"]
        with output:
            process = subprocess.Popen(command, env=environ, cwd=home, stdout=output, stderr=subprocess.STDOUT)
        self._running[name] = process

    def has_started(self, name: str) -> bool:
        """Runs the container's gRPC startup probe. Fails when its process has ended."""
        assert self._running[name].poll() is None, self.output(name)
        probe = self._containers[name]["startupProbe"]["grpc"]
        try:
            ask(f"127.0.0.1:{self.port(name, probe['port'])}", probe["service"])
        except NotServing:
            return False
        return True

    def execute(self, name: str, *words: str) -> str:
        """Runs a command in a container, as `kubectl exec` does, and returns its output."""
        environ = self.environment(name)
        done = subprocess.run(
            self.command(list(words)),
            env=environ,
            cwd=environ["ALLM_HOME"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr + self.output(name)
        return done.stdout

    def output(self, name: str) -> str:
        """Returns a container's output."""
        path = self._folder / f"{name}.txt"
        return f"--- {name}\n{path.read_text()[-4000:] if path.exists() else 'not started'}"

    def stop(self) -> dict[str, int]:
        """Sends SIGTERM to all, kills those that do not end, and returns the exit statuses."""
        for process in self._running.values():
            process.terminate()
        statuses = {}
        for name, process in self._running.items():
            try:
                statuses[name] = process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                statuses[name] = process.wait()
        return statuses

    def _own(self, name: str, port: int) -> int:
        return self._ports[name].get(port, port)
