"""Two service processes with real workers on one host: they never reserve the same memory."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.processes import has_ended

SECONDS = 60.0
POLL_SECONDS = 0.02


class Rival:
    """A running tests/residency/rival.py."""

    def __init__(self, folder: Path, replica: str, patience: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.residency.rival", str(folder), replica, str(patience)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, command: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def ask(self, command: str) -> str:
        self.say(command)
        return self.hear()

    def workers(self) -> list[int]:
        """Returns the process ids of its live workers."""
        if self.process.poll() is not None:
            return []
        return [child.pid for child in psutil.Process(self.process.pid).children() if not has_ended(child)]


@contextmanager
def rivals(folder: Path, patience: float) -> Iterator[tuple[Rival, Rival]]:
    """Starts two rivals, like a text and an image service."""
    text, image = Rival(folder, "text", patience), Rival(folder, "image", patience)
    try:
        assert (text.hear(), image.hear()) == ("open", "open")
        yield text, image
        for rival in (text, image):
            if rival.process.poll() is None:
                assert rival.process.stdin
                rival.process.stdin.close()
                assert rival.process.wait(SECONDS) == 0
    finally:
        for rival in (text, image):
            if rival.process.poll() is None:
                rival.process.kill()
            rival.process.wait()
            for pipe in (rival.process.stdin, rival.process.stdout):
                if pipe:
                    pipe.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Rival, Rival]]:
    """Yields two rivals that wait only briefly for room."""
    with rivals(tmp_path, patience=0.2) as running:
        yield running


def test_of_two_concurrent_busy_loads_one_is_admitted(pair: tuple[Rival, Rival]) -> None:
    text, image = pair
    text.say("hold text-600")
    image.say("hold image-600")
    answers = [text.hear(), image.hear()]
    assert sorted(answers) == ["held", "refused OUT_OF_MEMORY"]
    assert len(text.workers() + image.workers()) == 1
    loser = image if answers[0] == "held" else text
    assert loser.ask("use small-200") == "used", "what fits beside it is loaded"
    assert len(text.workers() + image.workers()) == 2


def test_of_two_concurrent_loads_one_evicts_the_other(tmp_path: Path) -> None:
    with rivals(tmp_path, patience=SECONDS) as (text, image):
        for _ in range(3):
            text.say("use text-600")
            image.say("use image-600")
            assert [text.hear(), image.hear()] == ["used", "used"]
            assert len(text.workers() + image.workers()) == 1


def test_memory_of_a_killed_service_is_free(pair: tuple[Rival, Rival]) -> None:
    text, image = pair
    assert image.ask("hold image-600") == "held"
    (worker,) = image.workers()
    assert text.ask("use text-600") == "refused OUT_OF_MEMORY"
    image.process.send_signal(signal.SIGKILL)
    image.process.wait()
    assert text.ask("use text-600") == "used"
    deadline = time.monotonic() + SECONDS
    while not has_ended(worker):
        assert time.monotonic() < deadline, "its worker has outlived it"
        time.sleep(POLL_SECONDS)


def test_a_stopped_peer_delays_loads_only_briefly(pair: tuple[Rival, Rival]) -> None:
    """It keeps its memory: loads that need that memory are refused, the others are served."""
    text, image = pair
    assert image.ask("use image-600") == "used"
    image.process.send_signal(signal.SIGSTOP)
    try:
        assert text.ask("use text-600") == "refused OUT_OF_MEMORY"
        assert text.ask("use text-200") == "used"
    finally:
        image.process.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + SECONDS
    while text.ask("use text-601") != "used":  # both rivals wait for room less long than one monitor round takes
        assert time.monotonic() < deadline, "it answers again, and its idle model goes"
        time.sleep(POLL_SECONDS)
