"""The main program of a worker: what a crash of native code leaves behind."""

from __future__ import annotations

import signal
import subprocess
import sys

CRASH = """
import os, signal, socket, sys
from services.worker.channel import BlockingChannel
from services.worker.main import run_worker
from tests.worker.toy_worker import Say, ToToy

def load(message, channel):
    os.kill(os.getpid(), signal.SIGSEGV)

ours, theirs = socket.socketpair()
BlockingChannel(ours, ToToy).send(Say("secret"))
sys.argv[1:] = [str(theirs.detach())]
run_worker(ToToy, Say, load)
"""


def test_a_crash_names_the_calls_that_led_to_it_and_no_data() -> None:
    ran = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, check=False)
    assert ran.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in ran.stderr
    assert "in load" in ran.stderr
    assert "secret" not in ran.stderr
