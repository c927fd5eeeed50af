"""Closed-loop load on the batch loop in this process, for profiling a runtime: no server, no socket, no text.

Prompts are random tokens, so that any vocabulary works, no prompt repeats, and no template is needed. The module
imports only the engine and the standard library, so it runs on a bare machine with torch and transformers.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from services.text.engine import sequence
from services.text.engine.loop import BatchLoop
from services.text.engine.messages import EngineOptions, Stepped
from services.text.engine.request_loop import BatchLimits, Inbox
from services.text.engine.runtime import Runtime
from services.text.engine.sampling import SamplingParams
from services.worker.messages import RequestRefused

_ORDINARY = 256  # the first tokens of a vocabulary are special ones, or single bytes


class LoadError(Exception):
    """The engine refused a request."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load: a number of clients, each of which sends its next request as soon as the last one is answered."""

    clients: int
    requests: int  # measured ones
    warmup: int  # requests before them
    prompt_tokens: int = 143
    output_tokens: int = 64


@dataclass(slots=True)
class Figures:
    """The measured figures; times in seconds."""

    load: Load
    wall: float = 0.0
    cpu: float = 0.0  # CPU time of all threads of this process
    tokens: int = 0
    steps: int = 0
    first: list[float] = field(default_factory=list)  # until each request's first token
    gaps: list[float] = field(default_factory=list)  # between two tokens of a request

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.wall if self.wall else 0.0

    def line(self) -> str:
        """The figures as a line for a terminal."""
        first, gap = (
            " / ".join(f"{1000 * share(times, part):.0f}" for part in (0.5, 0.95)) for times in (self.first, self.gaps)
        )
        step, cpu = 1000 * self.wall / max(1, self.steps), 1000 * self.cpu / max(1, self.tokens)
        return (
            f"{self.load.clients:3} clients  {self.tokens_per_second:7.1f} tokens/s  first token p50 / p95 {first} ms  "
            f"gap {gap} ms  {step:.1f} ms/step  {cpu:.2f} CPU ms/token"
        )


def share(values: Sequence[float], part: float) -> float:
    """Returns the value below which `part` of the values lie; 0 without values."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def options(path: str, clients: int, *, threads: int, gpu: bool = False, context: int = 1024) -> EngineOptions:
    """Returns the service's options, with a context and a cache of `context` tokens for each client."""
    return EngineOptions(
        model_id="bench",
        path=path,
        threads=threads,
        gpu=gpu,
        context_tokens=context,
        kv_tokens=context * clients,
        max_sequences=clients,
        batch_tokens=2048,
        chunk_tokens=2048,
        prefix_cache=False,
    )


def measure(runtime: Runtime, options: EngineOptions, load: Load, seed: str) -> Figures:
    """Warms up, then measures; the batch loop runs in this thread.

    Raises:
        LoadError: the engine refused a request.
    """
    run = _Run(runtime, options, load, seed)
    run.until(load.warmup)
    run.figures = Figures(load)
    wall, cpu = time.perf_counter(), time.process_time()
    run.until(load.requests)
    run.figures.wall, run.figures.cpu = time.perf_counter() - wall, time.process_time() - cpu
    return run.figures


class _Run:
    """The clients of one load."""

    def __init__(self, runtime: Runtime, options: EngineOptions, load: Load, seed: str) -> None:
        self._inbox: Inbox = queue.SimpleQueue()
        limits = BatchLimits(options.max_sequences, options.batch_tokens, options.chunk_tokens, 0)
        self._loop = BatchLoop(runtime, limits, self._inbox, self._take)
        self._load = load
        self._vocabulary = runtime.ready.vocabulary
        self._random = Random(seed)  # noqa: S311 (load, no secret)
        self._asked = 0
        self._wanted = 0
        self._times: dict[int, list[float]] = {}  # of a running request: its start and its tokens' times
        self.figures = Figures(load)

    def until(self, requests: int) -> None:
        """Sends `requests` more requests and waits for their answers."""
        self._wanted = self._asked + requests
        for _ in range(min(requests, self._load.clients)):
            self._ask()
        while self._times:
            self._loop.turn()

    def _ask(self) -> None:
        self._asked += 1
        tokens = [self._random.randrange(_ORDINARY, self._vocabulary) for _ in range(self._load.prompt_tokens)]
        params = SamplingParams(temperature=0, max_tokens=self._load.output_tokens, ignore_eos=True)
        self._times[self._asked] = [time.perf_counter()]
        self._inbox.put(sequence.Sequence(self._asked, f"client {self._asked}", tokens, params))

    def _take(self, message: object) -> None:
        if isinstance(message, RequestRefused):
            raise LoadError(f"{message.code}: {message.message}")
        if not isinstance(message, Stepped):
            return
        now = time.perf_counter()
        self.figures.steps += 1
        for piece in message.pieces:
            times = self._times[piece.request]
            times.append(now)
            if piece.finish is None:
                continue
            del self._times[piece.request]
            self.figures.tokens += piece.completion_tokens
            self.figures.first.append(times[1] - times[0])
            self.figures.gaps.extend(late - early for early, late in pairwise(times[1:]))
            if self._asked < self._wanted:
                self._ask()
