"""The permissions of a decoder process, tested in a process that confines itself the same way."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from services.audio.sound.decoding.confinement import MEMORY_BYTES
from tests.audio.sound.pool import Pool, decoder_processes

on_modules_loop = pytest.mark.asyncio(loop_scope="module")

TRY = """
import os, resource, socket, sys
from services.audio.sound.decoding import confinement
confinement.MEMORY_BYTES = 64 * 2**20
confinement.confine()
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
def test_what_it_may_not_do(body: str, error: str) -> None:
    done = tried(body)
    assert done.returncode == 1
    assert error in done.stderr.splitlines()[-1]


def test_it_may_use_the_memory_that_it_is_given() -> None:
    assert tried("bytes(40 * 2**20)").returncode == 0


def test_it_may_open_what_it_is_told_to_but_not_write(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    read = "with confinement.may_open(): print(open(sys.argv[1]).read())"
    assert tried(read, str(path)).stdout == "x\n"
    done = tried("with confinement.may_open(): open(sys.argv[1], 'wb', buffering=0).write(b'more')", str(path))
    assert "File too large" in done.stderr.splitlines()[-1]


def test_its_time_is_limited_for_each_file_anew() -> None:
    spin = "while True: pass"
    done = tried(f"confinement.CPU_SECONDS = 0.0\nconfinement.allow_cpu(0.0)\n{spin}")
    assert done.returncode == -signal.SIGXCPU
    more = (
        "import time\n"
        "for _ in range(3):\n"
        "    confinement.CPU_SECONDS = 0.5\n    confinement.allow_cpu(0.0)\n"
        "    end = time.process_time() + 0.4\n"
        "    while time.process_time() < end: pass\n"
        "print('done')"
    )
    assert tried(more).stdout == "done\n"


@on_modules_loop
async def test_a_decoder_is_confined_and_has_one_thread_beside_its_watcher(pool: Pool) -> None:
    for process in decoder_processes():
        limits = {kind: process.rlimit(kind) for kind in (psutil.RLIMIT_CORE, psutil.RLIMIT_FSIZE, psutil.RLIMIT_NPROC)}
        assert set(limits.values()) == {(0, 0)}
        assert process.rlimit(psutil.RLIMIT_NOFILE)[0] == 1
        assert process.rlimit(psutil.RLIMIT_AS)[1] < MEMORY_BYTES + 400 * 2**20
        assert process.num_threads() == 2


@on_modules_loop
async def test_a_decoder_has_no_more_threads_with_a_file(pool: Pool) -> None:
    from tests.audio.sound.sound_files import encoded

    async with pool.open(encoded("flac", 120.0)) as sound:
        assert await sound.read()
        assert {process.num_threads() for process in decoder_processes()} == {2}
