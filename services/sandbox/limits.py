"""What a process that reads callers' files may do: little, so that a hostile file can do no more.

Limits are the kernel's, set once everything is imported and in place. They bind the whole process, libraries included.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

DESCRIPTORS = 16  # most that are ever open


def confine(memory_bytes: int) -> None:
    """Takes away what reading a file does not need. Nothing can be imported or started afterwards.

    Args:
        memory_bytes: address space on top of what the libraries take.
    """
    _limit(resource.RLIMIT_CORE, 0)  # a dump would hold what the caller sent
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NPROC, 0)  # neither processes nor threads (the superuser may all the same)
    if size := _virtual_bytes():
        _limit(resource.RLIMIT_AS, size + memory_bytes)
    highest = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = DESCRIPTORS if highest == resource.RLIM_INFINITY else min(DESCRIPTORS, highest)
    # One is less than are open already: neither files nor sockets can be.
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, most))


@contextlib.contextmanager
def may_open() -> Iterator[None]:
    """Lets the block open files."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, most))


def allow_cpu(seconds: float) -> None:
    """Gives the process so much CPU time for one more file; the kernel ends it when that is spent."""
    used = sum(os.times()[:2])
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    allowed = int(used + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (allowed if most == resource.RLIM_INFINITY else min(allowed, most), most))


def end_with(sock: socket.socket) -> None:
    """Ends this process as soon as the other end of `sock` is gone, whatever native code is running."""
    threading.Thread(target=_watch, args=(sock.fileno(),), name="watcher", daemon=True).start()


def _watch(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, 0)  # a hang-up is told without asking; data is not this thread's
    poll.poll()
    os._exit(0)


def _limit(what: int, most: int) -> None:
    highest = resource.getrlimit(what)[1]
    limit = most if highest == resource.RLIM_INFINITY else min(most, highest)
    resource.setrlimit(what, (limit, limit))


def _virtual_bytes() -> int:
    """The address space in use; 0 where the system does not tell: there is no such limit then."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()
