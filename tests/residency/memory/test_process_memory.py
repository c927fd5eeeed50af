"""The memory of real processes that allocate in known ways."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.residency.memory.process_memory import ProcessMemory, read_process_memory

MIB = 1024 * 1024
SIZE = 96 * MIB
SLACK = 8 * MIB

TAKES = f"kept = bytearray(os.urandom({MIB})) * {SIZE // MIB}"
TAKES_AND_GIVES_BACK = f"{TAKES}; del kept"
MAPS = "file = open(sys.argv[1], 'rb'); seen = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); sum(seen[::4096])"
HAS_A_CHILD = (
    f"child = subprocess.Popen([sys.executable, '-c', \"import os; {TAKES}; print('x', flush=True); input()\"],"
    " stdin=subprocess.PIPE, stdout=subprocess.PIPE); child.stdout.readline()"
)


@pytest.fixture
def running() -> Iterator[Callable[..., int]]:
    started: list[subprocess.Popen[str]] = []

    def start(does: str, *arguments: str) -> int:
        program = f"import mmap, os, subprocess, sys; {does}; print('there', flush=True); sys.stdin.read()"
        command = [sys.executable, "-c", program, *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == "there\n"
        return process.pid

    yield start
    for process in started:
        process.communicate()


def above(pid: int, idle: int) -> ProcessMemory:
    now, before = read_process_memory(pid), read_process_memory(idle)
    return ProcessMemory(now.held - before.held, now.mapped - before.mapped, now.peak - before.peak)


def test_memory_of_a_process_is_reserved(running) -> None:
    taken = above(running(TAKES), running("pass"))
    assert abs(taken.held - SIZE) < SLACK
    assert abs(taken.mapped) < SLACK
    assert abs(taken.peak - SIZE) < SLACK
    assert taken.total == taken.held + taken.mapped


def test_released_memory_is_only_in_the_peak(running) -> None:
    taken = above(running(TAKES_AND_GIVES_BACK), running("pass"))
    assert taken.held < SLACK
    assert abs(taken.peak - SIZE) < SLACK


def test_a_mapped_file_is_mapped_and_not_held(running, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(os.urandom(MIB) * (SIZE // MIB))
    taken = above(running(MAPS, str(tmp_path / "weights")), running("pass"))
    assert abs(taken.mapped - SIZE) < SLACK
    assert taken.held < SLACK


@pytest.mark.parametrize("threads", [False, True])
def test_children_count_whichever_thread_started_them(running, threads: bool) -> None:
    does = HAS_A_CHILD
    if threads:  # this thread stays alive, because the kernel gives an ended thread's children to another thread
        started = f"exec({HAS_A_CHILD!r}, globals()); done.set(); threading.Event().wait()"
        thread = f"threading.Thread(target=exec, args=({started!r}, globals()), daemon=True)"
        does = f"import threading; done = threading.Event(); {thread}.start(); done.wait()"
    taken = above(running(does), running("pass"))
    assert taken.held > SIZE - SLACK


def test_ended_process_has_no_figures() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert read_process_memory(process.pid) == ProcessMemory()


def test_elsewhere_than_on_linux_psutil_tells(tmp_path: Path) -> None:
    found = read_process_memory(os.getpid(), tmp_path)
    assert found.held > 0
    assert (found.mapped, found.peak >= found.held) == (0, True)
