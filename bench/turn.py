"""One server's turn: waits for a quiet machine, starts the server, measures one level, repeats a disturbed measurement.

Turns of several runs on one machine exclude each other.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from bench.level import Level, LevelResult
from bench.load import Messages, Target, measure
from bench.noise import NoiseMeter
from bench.process import Launch, running
from bench.prompts import PromptSet
from bench.prompts import messages as words

_NOISY_PERCENT = 3.0  # of all cores, stolen or used by others: more than this affects the figures
_PATIENCE_SECONDS = 120.0
_LOOK_SECONDS = 1.0
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of a turn."""

    idle_percent: float  # of one core, before the first request
    attempts: int  # more than one if others disturbed it
    result: LevelResult
    memory: tuple[int, int]  # bytes of the process with the model, after its first answer and after the last

    @property
    def disturbance(self) -> float:
        """Percentage of the machine that neither the server nor the client used."""
        return self.result.noise.steal_percent + self.result.noise.other_percent


def take(launch: Callable[[], Launch], level: Level, seed: str, messages: Messages = words) -> Turn:
    """Measures a level against a freshly started server, up to three times; the least disturbed attempt counts."""
    turns: list[Turn] = []
    while len(turns) < _ATTEMPTS and not (turns and turns[-1].disturbance <= _NOISY_PERCENT):
        with machine_alone(), running(launch()) as server:
            idle = server.idle_percent()
            target = Target(server.url, server.model, pid=server.pid, seed=seed, messages=messages)
            measure(target, [Level(PromptSet.UNIQUE, 1, requests=1, warmup=0)])  # loads the model
            loaded = server.memory()
            (result,) = measure(target, [level])
            turns.append(Turn(idle, len(turns) + 1, result, (loaded, server.memory())))
    return min(turns, key=lambda turn: turn.disturbance)


@contextmanager
def machine_alone() -> Iterator[None]:
    """Excludes other runs of the bench on this machine; waits until it is quiet."""
    with (Path(gettempdir()) / "allm-bench.lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wait_for_quiet()
        yield


def wait_for_quiet() -> bool:
    """Waits until no other process computes; returns False after two minutes, and the turn continues anyway."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        meter = NoiseMeter()
        time.sleep(_LOOK_SECONDS)
        noise = meter.read()
        if noise.steal_percent + noise.other_percent <= _NOISY_PERCENT:
            return True
    return False
