"""The processes of a stack: finding, stopping and killing them by their ids."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from tests.stack import Stack

WORKERS = {"text": "services.text.engine", "audio": "services.audio.engine", "image": "services.image.engine"}


def service_pid(stack: Stack, name: str) -> int:
    """Returns the process id of a service, `catalog` and `gateway` too; 0 while it is down."""
    return int(stack.note["children"].get(name, 0))


def worker_pids(stack: Stack, name: str) -> list[int]:
    """Returns the process ids of a service's workers."""
    return [child.pid for child in _children(service_pid(stack, name)) if WORKERS[name] in _command(child)]


def members(stack: Stack) -> dict[int, str]:
    """Returns the kind of every process of a stack, by process id; includes the supervisor."""
    own = {stack.process.pid: "supervisor"} | {pid: name for name, pid in stack.note["children"].items()}
    found = dict(own)
    for child in _children(stack.process.pid):
        found.setdefault(child.pid, _module(child))
    return found


def kill(pid: int) -> None:
    """Kills a process with SIGKILL."""
    os.kill(pid, signal.SIGKILL)


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Suspends processes with SIGSTOP while the block runs; ignores processes that have ended by then."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True) if pid else []
    except psutil.NoSuchProcess:
        return []


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _module(process: psutil.Process) -> str:
    command = _command(process)
    return command[command.index("-m") + 1] if "-m" in command[:-1] else " ".join(command[:1])
