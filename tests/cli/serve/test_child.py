"""Child processes: they never outlive their parent."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from tests.processes import has_ended

CHILD = [sys.executable, "-m", "services.cli.serve.child"]
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
# Starts a child, prints its process id, and waits.
PARENT = f"""
import os, subprocess, time
child = subprocess.Popen([*{CHILD!r}, str(os.getpid()), *{SLEEP!r}])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_it_becomes_the_program() -> None:
    command = [*CHILD, str(os.getpid()), sys.executable, "-c", "print('hello'); raise SystemExit(7)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("hello\n", 7)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
def test_kill_9_of_the_parent_ends_it() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = psutil.Process(int(parent.stdout.readline()))
        _wait_for_program(child)
        parent.kill()
        parent.wait()
        _wait_gone(child)


def test_it_does_not_start_without_its_parent() -> None:
    done = subprocess.run([*CHILD, "1", *SLEEP], check=False, timeout=30)
    assert done.returncode == 1


def _wait_for_program(child: psutil.Process) -> None:
    """Waits until the launcher has become the program."""
    for _ in range(600):
        if "services.cli.serve.child" not in child.cmdline():
            return
        parent_is_late = psutil.Process(child.pid)
        _, alive = psutil.wait_procs([parent_is_late], timeout=0.05)
        assert alive
    pytest.fail("the program was not started")


def _wait_gone(child: psutil.Process) -> None:
    """Waits until the child has ended; another process reaps it, so a zombie counts as ended."""
    for _ in range(200):
        if has_ended(child):
            return
        psutil.wait_procs([child], timeout=0.05)
    pytest.fail("the child lives on")
