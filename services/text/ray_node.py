"""One of the machines that compute a model together: `python -m services.text.ray_node leader|worker ...`.

The leader starts Ray's head, waits until all machines of its group are there, and then runs the text service, whose
vLLM computes on all of them (ALLM_RAY_ADDRESS). A worker waits for the head, and lends it its GPUs. Either ends when
what it runs does, and the leader when a machine is lost: the group is of no use any more then, and Kubernetes makes it
anew as a whole.

On SIGTERM the leader has the service drain. A worker goes on until the leader has gone, since answers are still being
computed on it, but no longer than a drain may take.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from services.settings.setting import SettingError
from services.settings.settings import Settings, load_settings
from services.telemetry.logs import setup_logs

NODE = "services.text.ray_node"
HEAD_PORT = 6379
NODE_PORT = 6380  # the port of each machine's Ray process, which its probes check
STORE_BYTES = 1 << 30  # vLLM sends little through Ray's object store, whose default is a third of the memory
LOOK_SECONDS = 0.2
CONNECT_SECONDS = 2.0
# The time for Ray's processes to exit. In a container, the remaining ones end with this process.
STOP_SECONDS = 5.0
CONNECT_TRIES = 60
PAUSE_SECONDS = 1.0
WATCH_SECONDS = 5.0
LEADER_SECONDS = 5.0  # the time for the leader to close its resources after its drain

# Ray's processes inherit variables that they lack from the leader's worker, which is limited to the loopback interface.
# An empty value prevents that, and has the same effect as an unset one.
ANY_INTERFACE = """
export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME-}" GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME-}"
exec "$0" "$@"
"""

log = logging.getLogger("ray-node")


class Children:
    """The child processes of a container's first process, which also has to reap orphans."""

    def __init__(self) -> None:
        self.stopping = False  # True after SIGTERM
        self._running: set[int] = set()
        self._statuses: dict[int, int] = {}  # of ended children
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def start(self, command: Sequence[str]) -> int:
        """Starts a command and returns its process id."""
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        process.returncode = 0  # `status` waits for the process, not Popen
        self._running.add(process.pid)
        return process.pid

    def status(self, pid: int) -> int | None:
        """Returns the exit status of a child, negative for a signal; None while it runs."""
        while self._running:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:  # the remaining processes cannot be waited for
                break
            if not ended:
                break
            if ended in self._running:
                self._running.remove(ended)
                self._statuses[ended] = os.waitstatus_to_exitcode(status)
        return self._statuses.get(pid)

    def terminate(self, pid: int) -> None:
        """Sends SIGTERM to a running child."""
        if self.status(pid) is None:
            os.kill(pid, signal.SIGTERM)

    def wait(self, *pids: int, until: Callable[[], bool] = lambda: False) -> None:
        """Waits until one of the children has ended or `until` returns True."""
        while all(self.status(pid) is None for pid in pids) and not until():
            time.sleep(LOOK_SECONDS)

    def end(self, pid: int) -> None:
        """Terminates a child, and kills it after STOP_SECONDS."""
        self.terminate(pid)
        deadline = time.monotonic() + STOP_SECONDS
        self.wait(pid, until=lambda: time.monotonic() > deadline)
        if self.status(pid) is None:
            os.kill(pid, signal.SIGKILL)
            self.wait(pid)

    def _stop(self, *_: object) -> None:
        self.stopping = True


def lead(options: argparse.Namespace, settings: Settings) -> int:
    """Runs Ray's head, and the text service once all machines have joined. Returns the exit status."""
    python = settings.text.vllm_python or sys.executable
    children = Children()
    head = children.start(_ray(python, options, "--head", f"--port={HEAD_PORT}", "--include-dashboard=false"))
    address = f"{options.ip}:{HEAD_PORT}"
    machines = [address, str(options.nodes)]
    gathered = children.start([python, "-m", NODE, "gather", *machines])
    children.wait(head, gathered, until=lambda: children.stopping)
    if children.stopping or children.status(gathered) != 0:
        if not children.stopping:
            log.error("the machines of this group did not all join: Ray's head has ended, or does not answer")
        children.end(gathered)
        children.end(head)
        return 0 if children.stopping else 1
    log.info("all machines of this group have joined", extra={"nodes": options.nodes})
    service = children.start([sys.executable, "-m", "services.text"])
    watched = children.start([python, "-m", NODE, "watch", *machines])
    children.wait(head, service, watched, until=lambda: children.stopping)
    gone = {"Ray's head": children.status(head), "one of the machines": children.status(watched)}
    lost = [what for what, status in gone.items() if status is not None and not children.stopping]
    if lost:
        log.error("%s has left: this group must be restarted", lost[0])
    children.terminate(service)
    children.wait(service)
    children.end(watched)
    children.end(head)
    status = children.status(service) or 0
    # SIGTERM arrived before the service could handle it.
    status = 0 if children.stopping and status == -signal.SIGTERM else status
    return 1 if lost else status


def work(options: argparse.Namespace, settings: Settings) -> int:
    """Lends this machine to the leader's Ray until SIGTERM arrives and the leader has gone. Returns the exit status."""
    python = settings.text.vllm_python or sys.executable
    children = Children()
    children.wait(until=lambda: children.stopping or _reachable(options.leader))
    if children.stopping:
        return 0
    node = children.start(_ray(python, options, f"--address={options.leader}:{HEAD_PORT}"))
    children.wait(node, until=lambda: children.stopping)
    if not children.stopping:
        log.error("Ray has ended: this group must be restarted", extra={"status": children.status(node)})
        return 1
    drain = settings.service.drain_delay_seconds + settings.service.drain_seconds + LEADER_SECONDS
    deadline = time.monotonic() + drain
    children.wait(node, until=lambda: time.monotonic() > deadline or not _reachable(options.leader))
    children.end(node)
    return 0


def _ray(python: str, options: argparse.Namespace, *place: str) -> list[str]:
    """Returns the command `ray start` in the foreground, which ends when one of Ray's processes does."""
    return [
        *("sh", "-c", ANY_INTERFACE, python, "-m", "ray.scripts.scripts"),
        *("start", *place, "--block", "--disable-usage-stats"),
        *(f"--node-ip-address={options.ip}", f"--node-manager-port={NODE_PORT}"),
        # Ray starts an idle process for each core that it may use; vLLM uses none of them.
        *(f"--num-gpus={options.gpus}", "--num-cpus=1", f"--object-store-memory={STORE_BYTES}"),
    ]


def _reachable(leader: str) -> bool:
    try:
        with socket.create_connection((leader, HEAD_PORT), CONNECT_SECONDS):
            return True
    except OSError:
        return False


def gather(ray: Any, count: int) -> None:
    """Waits until the cluster has `count` machines, without a time limit."""
    reported = 0
    while (joined := machines(ray)) < count:
        if joined != reported:
            reported = joined
            print(f"{joined} of {count} machines have joined", file=sys.stderr, flush=True)
        time.sleep(PAUSE_SECONDS)


def watch(ray: Any, count: int) -> None:
    """Waits until the cluster has fewer than `count` machines. Ray needs about 30 seconds to report a lost machine."""
    while machines(ray) >= count:
        time.sleep(WATCH_SECONDS)


def machines(ray: Any) -> int:
    """Counts the live machines of the cluster."""
    return sum(node["Alive"] for node in ray.nodes())


def connect(address: str) -> Any:
    """Connects to the head at `ip:port` and returns Ray's package. Raises ConnectionError if nothing answers."""
    # Ray is installed only where a model runs on several machines.
    import ray  # type: ignore[import-not-found]  # noqa: PLC0415

    for tries in range(1, CONNECT_TRIES + 1):
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            break
        except (ConnectionError, RuntimeError):  # the head is still starting
            if tries == CONNECT_TRIES:
                raise
            time.sleep(PAUSE_SECONDS)
    return ray


# The commands `python -m services.text.ray_node gather|watch HEAD COUNT`, which `lead` starts. They are processes of
# their own, because Ray is not a library for a service. vLLM also waits for machines, but its wait counts against the
# model's load time limit, and it does not watch for machines that leave. Kubernetes notices a dead node only minutes
# later.
MEMBERSHIP = {"gather": gather, "watch": watch}


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments. Invalid ones end the process with a message."""
    parser = argparse.ArgumentParser(prog="python -m services.text.ray_node", description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    for role in ("leader", "worker"):
        options = roles.add_parser(role)
        options.add_argument("--ip", required=True, help="this machine's address, reachable by the others")
        options.add_argument("--gpus", required=True, type=int, help="GPUs of this machine")
        if role == "leader":
            options.add_argument("--nodes", required=True, type=int, help="machines of a group, this one among them")
        else:
            options.add_argument("--leader", required=True, help="name or address of the leader")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the node, or checks the membership of its group. Returns the exit status."""
    if arguments and arguments[0] in MEMBERSHIP:
        check, head, count = arguments
        MEMBERSHIP[check](connect(head), int(count))
        return 0
    options = read_options(arguments)
    try:
        settings = load_settings()
    except SettingError as error:
        print(error, file=sys.stderr)
        return 2
    setup_logs(settings.service.log_level)
    return lead(options, settings) if options.role == "leader" else work(options, settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
