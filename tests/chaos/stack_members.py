"""The processes of a stack: which is which, stopped and killed by their ids."""

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
    """Process id of a service, `catalog` and `gateway` too; 0 while it is away."""
    return int(stack.note["children"].get(name, 0))


def worker_pids(stack: Stack, name: str) -> list[int]:
    """Process ids of a service's workers."""
    return [child.pid for child in _children(service_pid(stack, name)) if WORKERS[name] in _command(child)]


def members(stack: Stack) -> dict[int, str]:
    """Every process of a stack, the supervisor too, by what it is."""
    own = {stack.process.pid: "supervisor"} | {pid: name for name, pid in stack.note["children"].items()}
    found = dict(own)
    for child in _children(stack.process.pid):
        found.setdefault(child.pid, _module(child))
    return found


def kill(pid: int) -> None:
    """kill -9."""
    os.kill(pid, signal.SIGKILL)


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Processes do nothing at all while the block runs; those that are gone by its end stay gone."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, whoever has yet to be told."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


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
