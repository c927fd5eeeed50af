"""The service's handle of a worker process: starts it, loads its model, exchanges messages, detects its end, kills it.

A worker is started by executing `python -m MODULE FD`, never by forking, because the service holds gRPC's threads. This
module does not interpret requests; `services/text/engine` and its siblings define their messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from services.errors import Internal, Timeout, from_code
from services.telemetry import logs
from services.worker.channel import AsyncChannel, ChannelClosed
from services.worker.messages import LoadFailed, Loading

M = TypeVar("M")
L = TypeVar("L")
R = TypeVar("R")

log = logging.getLogger(__name__)

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)  # proc_pid_status(5)
# Collects the process ids of the workers that a task starts, if the task has set a list, to measure a load's memory.
started_pids: ContextVar[list[int] | None] = ContextVar("started_pids", default=None)

GONE_SECONDS = 30.0  # for a killed process to exit; a process that waits for a broken device never does
EXIT_SECONDS = 0.5  # for a worker that closed its channel to exit by itself, with its own exit code


class WorkerDied(Exception):
    """The worker process ended unexpectedly; the message says how."""


class WorkerProcess(Generic[M]):
    """A child process and its channel."""

    def __init__(self, process: asyncio.subprocess.Process, channel: AsyncChannel[M], name: str) -> None:
        self._process = process
        self._channel = channel
        self._name = name
        self._killed = False
        self._for_all = False  # loaded, so its logs no longer belong to one request
        self._log_task = asyncio.create_task(self._forward_log())

    @classmethod
    async def start(
        cls, module: str, kind: Any, name: str, environ: Mapping[str, str], python: str = ""
    ) -> WorkerProcess[M]:
        """Starts `python -m module`. `kind` is the union of messages that it sends; `environ` is added to our
        environment; `python` is the interpreter, empty for ours.
        """
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                python or sys.executable,
                "-m",
                module,
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **environ},
                start_new_session=True,  # a terminal's Ctrl-C is the service's to handle
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        if (pids := started_pids.get()) is not None:
            pids.append(process.pid)
        channel: AsyncChannel[M] = await AsyncChannel.open(ours, kind)
        return cls(process, channel, name)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """True if the process has exited or closed its channel, so that it takes no more messages."""
        return self._process.returncode is not None or self._channel.ended

    @property
    def peak_memory(self) -> int:
        """The peak memory of the process, in bytes; 0 if the system does not report it."""
        try:
            found = _PEAK.search(Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace"))
        except OSError:
            return 0
        return int(found[1]) * 1024 if found else 0

    def belongs_to_all(self) -> None:
        """Detaches its log from the request that started it."""
        self._for_all = True

    def send(self, message: object) -> None:
        """Queues one message."""
        self._channel.send(message)

    async def receive(self) -> M:
        """Waits for one message. Raises WorkerDied when the process ended."""
        try:
            return await self._channel.receive()
        except ChannelClosed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), EXIT_SECONDS)
            self.kill()
            code = await self._gone()
            raise WorkerDied(f"worker {self.pid} of {self._name} ended: {describe_exit(code)}") from None

    async def messages(self) -> AsyncIterator[M]:
        """Yields messages until the process ends."""
        while True:
            yield await self.receive()

    def kill(self) -> None:
        """Kills the process and all its children immediately. Idempotent."""
        if self._killed:
            return
        self._killed = True
        # The process leads its own group, which exists as long as it has a member.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self, ask: Callable[[], None] | None = None, grace: float = 2.0) -> None:
        """Stops the process: calls `ask` if given, kills it after `grace` seconds, and waits until it has exited."""
        try:
            if ask and self._process.returncode is None:
                ask()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), grace)
        finally:
            self.kill()
            await self._gone()
            self._channel.close()
            await asyncio.gather(self._log_task, return_exceptions=True)

    async def _gone(self) -> int | None:
        """Waits up to GONE_SECONDS for the killed process. Returns its exit code, None if it does not exit."""
        try:
            return await asyncio.wait_for(self._process.wait(), GONE_SECONDS)
        except TimeoutError:
            log.exception("a killed worker does not exit", extra={"model": self._name, "pid": self.pid})
            self._log_task.cancel()
            return None

    async def _forward_log(self) -> None:
        """Forwards the worker's stderr to the service's log, with a limit per line."""
        assert self._process.stderr  # noqa: S101 (it was asked for above)
        while True:
            try:
                line = await self._process.stderr.readline()
            except ValueError:
                continue  # drops a line over the reader's limit
            if not line:
                return
            if self._for_all:
                logs.request_id.set("")
                logs.trace_id.set("")
            log.warning("worker: %s", line.decode(errors="replace").rstrip(), extra={"model": self._name})


def describe_exit(code: int | None) -> str:
    """Describes an exit code in words; None: the process did not exit."""
    if code is None:
        return "it cannot be killed: it is blocked in the kernel, for example by a broken device or disk"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def available_cores() -> int:
    """Returns the number of cores that this process may use (its affinity mask, which containers set)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_environ(threads: int) -> Mapping[str, str]:
    """Returns the environment variables for a worker's native libraries.

    Thread pools get as many threads as the engine uses, and their waiting threads must not burn the cores: by default
    GNU's OpenMP spins for milliseconds at every barrier (spinning.py).
    """
    return {
        "HF_HUB_OFFLINE": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # NVML's order: `cuda:1` in device_memory.py is the worker's `cuda:1`
        "OMP_NUM_THREADS": str(threads),
        "GOMP_SPINCOUNT": "3000",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # huge pages: weights are read from end to end for every token
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": str(threads),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart(Generic[M, L]):
    """The parameters of a model's worker."""

    module: str  # executed as `python -m module FD`
    messages: Any  # union of the messages that it sends
    ready: tuple[type[L], ...]  # of these, the one that says that the model is loaded
    model_id: str
    environ: Mapping[str, str]
    load: object  # first message to the worker
    seconds: float  # time limit of loading
    python: str = ""  # interpreter; empty: ours

    async def run(self, adopt: Callable[[WorkerProcess[M], L], R]) -> R:
        """Starts the worker and passes it to `adopt`, with its ready message. If starting or `adopt` raises, no process
        is left behind.

        Raises:
            Timeout: the model was not loaded in time.
            Internal: the worker died, or sent another message.
            AllmError: the worker's error for a model that it could not load.
        """
        try:
            worker: WorkerProcess[M] = await WorkerProcess.start(
                self.module, self.messages, self.model_id, self.environ, self.python
            )
        except OSError as error:
            who = self.python or "a worker"
            raise Internal(f"{self.model_id} could not be loaded: {who} cannot be started: {error.strerror}") from error
        try:
            worker.send(self.load)
            ready = await asyncio.wait_for(self._ready(worker), self.seconds)
            worker.belongs_to_all()
            return adopt(worker, ready)
        except TimeoutError:
            await worker.close()
            raise Timeout(
                f"{self.model_id} was not loaded within {self.seconds:g} seconds (ALLM_LOAD_SECONDS)"
            ) from None
        except WorkerDied as death:
            await worker.close()
            raise Internal(f"{self.model_id} could not be loaded: {death}") from death
        except BaseException:
            await worker.close()
            raise

    async def _ready(self, worker: WorkerProcess[M]) -> L:
        while True:
            message = await worker.receive()
            if isinstance(message, LoadFailed):
                raise from_code(message.code, message.message)
            if isinstance(message, self.ready):
                return message
            if not isinstance(message, Loading):
                raise Internal(f"the worker of {self.model_id} sent {type(message).__name__} before it was ready")
