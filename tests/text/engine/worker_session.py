"""A client of a text worker that speaks the service's protocol, for tests that all runtimes share."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.text.engine.messages import (
    Accepted,
    Counters,
    DecoderReady,
    EngineOptions,
    FromWorker,
    Hold,
    Load,
    Piece,
    Stepped,
    Submit,
    TokenLogprob,
)
from services.text.engine.sampling import SamplingParams
from services.text.manager import text_environ, vllm_environ
from services.worker.channel import BlockingChannel
from services.worker.messages import Cancel, LoadFailed, Loading, RequestRefused

SECONDS = 120.0  # a silent worker on a busy machine counts as dead after this time
LOAD_SECONDS = 300.0  # vLLM in two processes is imported three times
UNREAD_BYTES = 4096  # about ten steps
VLLM_PYTHON = Path(".venv/vllm/bin/python").absolute()


@dataclass
class Answer:
    """The messages received for one request so far."""

    prompt_tokens: int = 0
    pieces: list[Piece] = field(default_factory=list)
    refused: RequestRefused | None = None
    phases: list[str] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.refused is not None or bool(self.pieces and self.pieces[-1].finish)

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def finish(self) -> str | None:
        return self.pieces[-1].finish if self.pieces else None

    @property
    def tokens(self) -> int:
        return self.pieces[-1].completion_tokens if self.pieces else 0

    @property
    def cached(self) -> int:
        return self.pieces[-1].cached_tokens

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return [each for piece in self.pieces for each in piece.logprobs or ()]

    @property
    def prompt_logprobs(self) -> list[TokenLogprob]:
        return [each for piece in self.pieces for each in piece.prompt_logprobs or ()]


class WorkerSession:
    """A worker with a loaded model and a single client."""

    def __init__(self, runtime: str, path: Path, **changes: Any) -> None:
        self.runtime = runtime
        self.options = options = engine_options(path, **changes)
        ours, theirs = socket.socketpair()
        # A small send buffer keeps the worker at most a few steps ahead of its test.
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES)
        python = str(VLLM_PYTHON) if runtime == "vllm" else sys.executable
        self.process = subprocess.Popen(
            [python, "-m", "services.text.engine", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env={**os.environ, **worker_environ(runtime, options)},
            start_new_session=True,
        )
        theirs.close()
        self._socket = ours
        self._channel: BlockingChannel[Any] = BlockingChannel(ours, FromWorker)
        self._numbers = itertools.count(1)
        self.answers: dict[int, Answer] = {}
        self.counters: Counters | None = None
        self.steps: list[Counters] = []
        self._channel.send(Load(runtime, options))
        self.ready: DecoderReady | None = None
        self.failed: LoadFailed | None = None
        self._until(lambda: self.ready or self.failed, LOAD_SECONDS)

    def __enter__(self) -> WorkerSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket, waits until the worker notices and exits, then kills its process group."""
        self._socket.close()
        try:
            self.process.wait(SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(SECONDS)

    def submit(self, prompt: str | list[int], *, client: str = "a", **given: Any) -> int:
        """Sends a request; by default greedy and at most 24 tokens."""
        own = {
            name: given.pop(name)
            for name in ("grammar", "logprobs", "special", "deadline", "prediction", "scored", "pictures", "mark")
            if name in given
        }
        number = next(self._numbers)
        self.answers[number] = Answer()
        sampling = SamplingParams(**({"temperature": 0.0, "max_tokens": 24} | given))
        self._channel.send(Submit(number, client, prompt, sampling, **own))
        return number

    def ask(self, question: str, **given: Any) -> int:
        """Sends a user's question."""
        return self.submit(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", **given)

    def answer(self, question: str, **given: Any) -> Answer:
        """Sends a question and waits for the whole answer."""
        return self.finish(self.ask(question, **given))

    def finish(self, number: int) -> Answer:
        """Waits until a request has ended."""
        self._until(lambda: self.answers[number].done)
        return self.answers[number]

    def until(self, number: int, tokens: int) -> Answer:
        """Waits until a request has `tokens` tokens or has ended."""
        self._until(lambda: self.answers[number].tokens >= tokens or self.answers[number].done)
        return self.answers[number]

    def cancel(self, number: int) -> None:
        """Cancels a request."""
        self._channel.send(Cancel(number))

    def hold(self, number: int, held: bool) -> None:
        """Pauses a request, as for a caller who does not read, or resumes it."""
        self._channel.send(Hold(number, held))

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Suspends the worker, so that it receives all messages sent in the block together."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def idle(self) -> Counters:
        """Waits until no request runs or waits."""
        if self.counters is None:
            self.answer("word", max_tokens=1)  # a worker tells its counters with its first step
        self._until(lambda: self.counters is not None and not self.counters.running and not self.counters.waiting)
        assert self.counters is not None
        return self.counters

    def wait(self, condition: Callable[[], object]) -> None:
        """Reads the worker's messages until the condition holds."""
        self._until(condition)

    def _until(self, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            left = deadline - time.monotonic()
            assert left > 0, f"the worker of {self.runtime} does not get there: {self.counters}"
            if select.select([self._socket], [], [], left)[0]:
                self._take(self._channel.receive())

    def _take(self, message: Any) -> None:
        if isinstance(message, DecoderReady):
            self.ready = message
        elif isinstance(message, LoadFailed):
            self.failed = message
        elif isinstance(message, Accepted):
            self.answers[message.request].prompt_tokens = message.prompt_tokens
        elif isinstance(message, RequestRefused):
            self.answers[message.request].refused = message
        elif isinstance(message, Stepped):
            self.counters = message.counters
            self.steps.append(message.counters)
            for piece in message.pieces:
                self.answers[piece.request].pieces.append(piece)
            for phase in message.phases:
                self.answers[phase.request].phases.append(phase.name)
        else:
            assert isinstance(message, Loading), message


def worker_environ(runtime: str, options: EngineOptions) -> dict[str, str]:
    """Returns the environment variables that the service adds for a worker."""
    environ = dict(text_environ(options.threads))
    if runtime == "vllm":
        environ |= vllm_environ(options, Path.home() / ".cache" / "allm" / "test-vllm")
    return environ


def engine_options(path: Path, **changes: Any) -> EngineOptions:
    """Returns the default options, overridden by `changes`."""
    usual: dict[str, Any] = {
        "model_id": "demo",
        "path": str(path),
        "threads": 2,
        "gpu": False,
        "context_tokens": 1024,
        "kv_tokens": 4096,
        "max_sequences": 8,
        "batch_tokens": 512,
        "chunk_tokens": 256,
        "prefix_cache": True,
        "compiled": False,  # takes minutes on a busy machine
    }
    return EngineOptions(**{**usual, **changes})
