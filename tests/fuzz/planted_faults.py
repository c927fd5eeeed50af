"""Targets with the faults that fuzzing must find: `python -m tests.fuzz.planted_faults NOW COUNT SEED TARGET`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.fuzz.case_guard import CaseGuard
from tests.fuzz.case_loop import go_through
from tests.fuzz.fuzz_target import FuzzTarget

CPU_SECONDS = 0.5
MEMORY_BYTES = 64 * 1024 * 1024


def _raises(_: bytes) -> None:
    raise KeyError("a bug")


def _hangs(_: bytes) -> None:
    while True:
        try:
            sum(range(1000))
        except Exception:  # noqa: S112 (nothing that catches errors hides a hang)
            continue


def _hangs_deaf(_: bytes) -> None:
    """Hangs like native code that never returns to Python."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPROF])
    while True:
        pass


def _fills_memory(_: bytes) -> None:
    assert b"x" * (MEMORY_BYTES + 32 * 1024 * 1024)


def _fills_all_memory(_: bytes) -> None:
    bytearray(1 << 40)


def _crashes(_: bytes) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _refuses(case: bytes) -> None:
    raise ValueError(case)


FAULTS = {
    target.name: target
    for target in (
        FuzzTarget("raises", _raises, cases=1),
        FuzzTarget("hangs", _hangs, cases=1),
        FuzzTarget("hangs-deaf", _hangs_deaf, cases=1),
        FuzzTarget("fills-memory", _fills_memory, cases=1),
        FuzzTarget("fills-all-memory", _fills_all_memory, cases=1),
        FuzzTarget("crashes", _crashes, cases=1),
        FuzzTarget("refuses", _refuses, declared=(ValueError,), cases=5),
    )
}

if __name__ == "__main__":
    guard = CaseGuard(Path(sys.argv[1]), cpu_seconds=CPU_SECONDS, memory_bytes=MEMORY_BYTES)
    go_through([FAULTS[sys.argv[4]]], guard, 0, sys.argv[3])
