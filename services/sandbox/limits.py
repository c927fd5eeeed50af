"""Resource limits of a process that reads callers' files, so that a hostile file can do little harm.

The kernel enforces the limits. They are set after all imports and bind the whole process, including libraries.
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

DESCRIPTORS = 16  # most open file descriptors


def confine(memory_bytes: int) -> None:
    """Drops every right that reading a file does not need. Nothing can be imported or started afterwards.

    Args:
        memory_bytes: address space in addition to the current use.
    """
    _limit(resource.RLIMIT_CORE, 0)  # a core dump would hold the caller's data
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NPROC, 0)  # neither processes nor threads (does not bind the superuser)
    if size := _virtual_bytes():
        _limit(resource.RLIMIT_AS, size + memory_bytes)
    highest = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = DESCRIPTORS if highest == resource.RLIM_INFINITY else min(DESCRIPTORS, highest)
    # A limit below the number of open descriptors: neither files nor sockets can be opened.
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, most))


@contextlib.contextmanager
def may_open() -> Iterator[None]:
    """Allows the block to open files."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, most))


def allow_cpu(seconds: float) -> None:
    """Allows this much more CPU time, for the next file; the kernel kills the process when it is used up."""
    used = sum(os.times()[:2])
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    allowed = int(used + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (allowed if most == resource.RLIM_INFINITY else min(allowed, most), most))


def end_with(sock: socket.socket) -> None:
    """Ends this process as soon as the other end of `sock` closes, whatever native code is running."""
    threading.Thread(target=_watch, args=(sock.fileno(),), name="watcher", daemon=True).start()


def _watch(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, 0)  # POLLHUP is always reported; data is for another thread
    poll.poll()
    os._exit(0)


def _limit(what: int, most: int) -> None:
    highest = resource.getrlimit(what)[1]
    limit = most if highest == resource.RLIM_INFINITY else min(most, highest)
    resource.setrlimit(what, (limit, limit))


def _virtual_bytes() -> int:
    """Returns the address space in use; 0 if the system does not report it, so that no limit is set."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()
