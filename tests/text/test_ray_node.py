"""Leader and worker of models on several machines: startup, readiness and shutdown.

Ray is not installed here: a stand-in runs until a signal ends it, as `ray start --block` does.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.rpc.probe import NotServing, ask
from services.text.ray_node import HEAD_PORT
from tests.ports import free_port

SECONDS = 60
# The port is fixed, so each test run uses its own loopback addresses.
_NUMBER = free_port()
LEADER = f"127.66.{_NUMBER >> 8}.{_NUMBER & 255}"
NOBODY = f"127.67.{_NUMBER >> 8}.{_NUMBER & 255}"
PYTHON = """#!/bin/sh
echo "$$ $@ NCCL=${{NCCL_SOCKET_IFNAME-unset}}" >>{folder}/started
case "$2 $3" in
    *gather) until [ -e {folder}/gathered ]; do sleep 0.05; done ;;
    *watch) until [ -e {folder}/lost ]; do sleep 0.05; done ;;
    *) exec sleep 600 ;;
esac
"""


class Node:
    """A machine of a group, as a process."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._folder = folder
        python = folder / "python"
        python.write_text(PYTHON.format(folder=folder))
        python.chmod(0o755)
        self.health = f"127.0.0.1:{free_port()}"
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ALLM_")},
            "ALLM_HOME": str(folder),
            "ALLM_VLLM_PYTHON": str(python),
            "ALLM_LISTEN": f"127.0.0.1:{free_port()}",
            "ALLM_HEALTH_LISTEN": self.health,
            "ALLM_METRICS_PORT": "0",
            "ALLM_CATALOG": "127.0.0.1:1",
            "ALLM_DRAIN_DELAY_SECONDS": "0",
            **({"NCCL_SOCKET_IFNAME": "eth1"} if arguments[0] == "worker" else {}),
        }
        command = [sys.executable, "-m", "services.text.ray_node", *arguments]
        with (folder / "output").open("wb") as output:
            self.process = subprocess.Popen(command, env=environ, stdout=output, stderr=subprocess.STDOUT)

    def wait(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.05)

    def started(self, module: str) -> list[tuple[int, str]]:
        """Returns process id and arguments of each stand-in process that runs `module`."""
        lines = (self._folder / "started").read_text().splitlines() if (self._folder / "started").exists() else []
        return [(int(pid), rest) for pid, _, rest in (line.partition(" ") for line in lines) if module in rest]

    def ray(self) -> tuple[int, str]:
        """Returns process id and arguments of the stand-in for Ray."""
        self.wait(lambda: self.started("ray.scripts"))
        ((pid, arguments),) = self.started("ray.scripts")
        return pid, arguments

    def listens_to_signals(self) -> bool:
        """Returns whether the process handles SIGTERM."""
        (caught,) = re.findall(r"^SigCgt:\s+(\w+)$", Path(f"/proc/{self.process.pid}/status").read_text(), re.MULTILINE)
        return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)

    def gather(self) -> None:
        """Lets the node find all machines in the group."""
        (self._folder / "gathered").touch()

    def serves(self) -> bool:
        """Returns whether the text service is alive."""
        assert self.process.poll() is None, self.output()
        with contextlib.suppress(NotServing):
            ask(self.health, "liveness")
            return True
        return False

    def ended(self) -> int:
        """Waits for the exit status and checks that no process it started is left."""
        status = self.process.wait(SECONDS)
        for pid, _ in (*self.started("ray.scripts"), *self.started("ray_node")):
            assert not Path(f"/proc/{pid}").exists()
        return status

    def output(self) -> str:
        return (self._folder / "output").read_text()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def begin(*arguments: str) -> Node:
        nodes.append(Node(tmp_path, *arguments))
        return nodes[-1]

    yield begin
    for node in nodes:
        if node.process.poll() is None:
            node.process.kill()
            node.process.wait()
        for pid, _ in (*node.started("ray.scripts"), *node.started("ray_node")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def leader() -> Iterator[socket.socket]:
    """The leader's socket, for which a worker waits; the test calls `listen` on it."""
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((LEADER, HEAD_PORT))
        yield found


def test_a_leader_serves_once_all_machines_are_there_and_drains(start: Callable[..., Node]) -> None:
    node = start("leader", "--ip=10.0.0.1", "--gpus=4", "--nodes=2")
    _, arguments = node.ray()
    assert {"--head", f"--port={HEAD_PORT}", "--block"} <= set(arguments.split())
    assert {"--node-ip-address=10.0.0.1", "--num-gpus=4", "NCCL="} <= set(arguments.split())
    node.wait(lambda: node.started("ray_node"))
    assert f" gather 10.0.0.1:{HEAD_PORT} 2 " in node.started("ray_node")[0][1]
    children = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children")
    assert len(children.read_text().split()) == 2, "no service yet"
    node.gather()
    node.wait(node.serves)
    assert f" watch 10.0.0.1:{HEAD_PORT} 2 " in node.started("ray_node")[1][1]
    node.process.terminate()
    assert node.ended() == 0
    assert '"draining"' in node.output()
    assert '"stopped"' in node.output()


@pytest.mark.parametrize("what", ["Ray's head", "one of the machines"])
def test_a_leader_that_has_lost_something_ends(start: Callable[..., Node], tmp_path: Path, what: str) -> None:
    node = start("leader", "--ip=10.0.0.1", "--gpus=4", "--nodes=2")
    node.gather()
    pid, _ = node.ray()
    node.wait(lambda: len(node.started("ray_node")) == 2)
    if what == "Ray's head":
        os.kill(pid, signal.SIGKILL)
    else:
        (tmp_path / "lost").touch()
    assert node.ended() == 1
    assert f"{what} has left" in node.output()


def test_a_leader_can_be_stopped_while_it_waits(start: Callable[..., Node]) -> None:
    node = start("leader", "--ip=10.0.0.1", "--gpus=4", "--nodes=2")
    node.wait(lambda: node.started("ray_node"))
    node.process.terminate()
    assert node.ended() == 0


def test_a_worker_waits_for_the_leader_and_stays_until_that_has_gone(
    start: Callable[..., Node], leader: socket.socket
) -> None:
    node = start("worker", "--ip=10.0.0.2", "--gpus=4", f"--leader={LEADER}")
    leader.listen()
    leader.settimeout(SECONDS)
    leader.accept()[0].close()
    pid, arguments = node.ray()
    assert {f"--address={LEADER}:{HEAD_PORT}", "--node-ip-address=10.0.0.2", "--block"} <= set(arguments.split())
    assert arguments.endswith("NCCL=eth1")
    node.process.terminate()
    # The worker keeps probing the leader, and has not stopped Ray yet.
    for _ in range(3):
        leader.accept()[0].close()
    assert Path(f"/proc/{pid}").exists()
    leader.close()
    assert node.ended() == 0


def test_a_worker_that_has_lost_ray_ends(start: Callable[..., Node], leader: socket.socket) -> None:
    leader.listen()
    node = start("worker", "--ip=10.0.0.2", "--gpus=4", f"--leader={LEADER}")
    os.kill(node.ray()[0], signal.SIGTERM)
    assert node.ended() == 1
    assert "this group must be restarted" in node.output()


def test_a_worker_can_be_stopped_before_its_leader_starts(start: Callable[..., Node]) -> None:
    node = start("worker", "--ip=10.0.0.2", "--gpus=4", f"--leader={NOBODY}")
    node.wait(node.listens_to_signals)
    node.process.terminate()
    assert node.ended() == 0
    assert not node.started("ray.scripts")


@pytest.mark.parametrize("wrong", [["leader"], ["worker", "--ip=10.0.0.1", "--gpus=two", "--leader=x"], ["both"]])
def test_wrong_arguments_are_reported(wrong: list[str]) -> None:
    command = [sys.executable, "-m", "services.text.ray_node", *wrong]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "error:" in done.stderr
