"""Replaces itself by a program that dies with its parent: `child PARENT_PID PROGRAM [ARGUMENT...]`.

Linux can kill a process when its parent dies, but the process must request this itself, after the fork. Python code
between fork and exec can deadlock in a process with threads (gRPC has some), so this small program is started first; it
makes the request and then replaces itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def become(parent: int, command: list[str]) -> None:
    """Replaces this process by `command`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the request
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - the supervisor's own fixed command line


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
