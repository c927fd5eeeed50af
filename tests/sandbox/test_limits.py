"""The limits of a confined process, tested in a process that confines itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

TRY = """
import os, resource, socket, sys
from services.sandbox import limits
limits.confine(64 * 2**20)
{body}
"""


def tried(body: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", TRY.format(body=body), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("open('/etc/hostname')", "Too many open files"),
        ("socket.socket()", "Too many open files"),
        ("os.pipe()", "Too many open files"),
        ("os.dup(0)", "Too many open files"),
        ("bytes(80 * 2**20)", "MemoryError"),
    ],
)
def test_its_restrictions(body: str, error: str) -> None:
    done = tried(body)
    assert done.returncode == 1
    assert error in done.stderr.splitlines()[-1]


def test_it_may_use_the_memory_that_it_is_given() -> None:
    assert tried("bytes(40 * 2**20)").returncode == 0


def test_it_may_open_allowed_files_but_not_write(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    read = "with limits.may_open(): print(open(sys.argv[1]).read())"
    assert tried(read, str(path)).stdout == "x\n"
    done = tried("with limits.may_open(): open(sys.argv[1], 'wb', buffering=0).write(b'more')", str(path))
    assert "File too large" in done.stderr.splitlines()[-1]


def test_time_limit_restarts_for_each_file() -> None:
    spin = "while True: pass"
    done = tried(f"limits.allow_cpu(0.0)\n{spin}")
    assert done.returncode == -signal.SIGXCPU
    more = (
        "import time\n"
        "for _ in range(3):\n"
        "    limits.allow_cpu(0.5)\n"
        "    end = time.process_time() + 0.4\n"
        "    while time.process_time() < end: pass\n"
        "print('done')"
    )
    assert tried(more).stdout == "done\n"
