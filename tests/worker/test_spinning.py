"""Threads of OpenMP spin less while others want the cores."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

import pytest

from services.worker import spinning
from services.worker.spinning import Spinning


def test_a_team_of_sleeping_threads_exists_while_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    ctypes.CDLL("libgomp.so.1")
    clock = [0.0, 0.0]  # seconds, and seconds without a core
    monkeypatch.setattr(spinning.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(spinning, "_waited", lambda: clock[1])
    watch, began = Spinning(), set(threading.enumerate())

    def pass_by(seconds: float, waited: float) -> set[threading.Thread]:
        clock[0], clock[1] = clock[0] + seconds, clock[1] + waited
        watch.look()
        return set(threading.enumerate()) - began

    assert not pass_by(1.0, 0.15)  # what the stack's own processes take
    assert not pass_by(0.2, 0.2)  # too early to tell
    team = pass_by(1.0, 0.5)
    assert team
    assert pass_by(1.0, 0.15) == pass_by(1.0, 0.9) == team  # neither busy nor quiet changes nothing
    assert all(thread.is_alive() for thread in team)
    pass_by(1.0, 0.05)
    for thread in team:
        thread.join()


def test_a_process_on_the_same_core_takes_time_from_the_thread() -> None:
    core = min(os.sched_getaffinity(0))
    script = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()

        def compute() -> None:
            os.sched_setaffinity(0, {core})
            start = spinning._waited()
            while spinning._waited() < start + 0.01:
                pass

        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
        other.kill()
