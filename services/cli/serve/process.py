"""A child process of the supervisor: starts it, stops it, and logs its output to a file of bounded size."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

MAX_BYTES = 16 * 1024 * 1024
TAIL_LINES = 20
LAUNCHER = "services.cli.serve.child"
LIFELINE_VARIABLE = "ALLM_LIFELINE_FD"
READ_BYTES = 65536
MAX_LINE_BYTES = 1024 * 1024
WAITING = 256  # writes of a log that may wait for the disk, mostly of a few lines
FLUSH_SECONDS = 2.0
OUTPUT_SECONDS = 5.0  # how long the last output may take to arrive after a child's end


class LogFile:
    """Appends lines to a file. A full file is kept once as `NAME.1`, so a log takes 32 MiB at most.

    A thread writes, because a disk may let a write wait for minutes.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._size = path.stat().st_size
        self._waiting: queue.Queue[bytes] = queue.Queue(WAITING)  # empty bytes: the end
        self._writer = threading.Thread(target=self._write_all, name=f"log {path.name}", daemon=True)
        self._writer.start()

    def write(self, lines: list[bytes]) -> None:
        """Appends whole lines, given without line ends. Never blocks.

        Lines that a full, broken or hanging disk does not take are lost: a child whose output is not read would block.
        """
        self._tail.extend(line.decode("utf-8", "replace") for line in lines)
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(b"".join(line + b"\n" for line in lines))

    def tail(self) -> list[str]:
        """Returns the last lines written."""
        return list(self._tail)

    def close(self) -> None:
        """Writes the lines that wait, if the disk takes them soon, and closes the file; later lines are lost."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(b"", timeout=FLUSH_SECONDS)
        self._writer.join(FLUSH_SECONDS)

    def _write_all(self) -> None:
        while data := self._waiting.get():
            with contextlib.suppress(OSError):
                if self._size and self._size + len(data) > self._max_bytes:
                    self._rotate()
                self._size += self._file.write(data) or 0
        self._file.close()

    def _rotate(self) -> None:
        self.path.replace(self.path.with_name(self.path.name + ".1"))
        fresh = self.path.open("ab", buffering=0)
        self._file.close()
        self._file, self._size = fresh, 0


@dataclass(frozen=True, slots=True)
class Program:
    """A child's command."""

    name: str  # shown to people
    command: tuple[str, ...]  # the first element is an absolute path
    environ: Mapping[str, str]


class ChildProcess:
    """A running program. It has its own session, so a terminal's Ctrl-C reaches only the supervisor."""

    def __init__(self, program: Program, process: asyncio.subprocess.Process, log: LogFile) -> None:
        self.name = program.name
        self.pid = process.pid
        self.log = log
        self._process = process
        self._pumps = [asyncio.create_task(_pump(pipe, log)) for pipe in (process.stdout, process.stderr) if pipe]

    @classmethod
    async def start(cls, program: Program, log: LogFile, lifeline: int) -> ChildProcess:
        """Starts `program`. `lifeline`: the read end of a pipe, which reaches its end when the supervisor is gone."""
        process = await asyncio.create_subprocess_exec(
            *ending_with_us(program.command),
            env={**program.environ, LIFELINE_VARIABLE: str(lifeline)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            pass_fds=(lifeline,),
        )
        return cls(program, process, log)

    async def wait(self) -> int:
        """Waits for its end and its last output; returns the exit status, negative for a signal."""
        status = await self._process.wait()
        # A grandchild may keep the pipes open; the log is complete enough without its output.
        done, pending = await asyncio.wait(self._pumps, timeout=OUTPUT_SECONDS)
        for pump in pending:
            pump.cancel()
        for pump in done:
            pump.result()
        return status

    async def stop(self, seconds: float) -> None:
        """Sends SIGTERM, and SIGKILL after that many seconds."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            self.kill()
        await self.wait()

    def kill(self) -> None:
        """Sends SIGKILL to it and to its descendants: workers that hang as well would not notice its end."""
        tree: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            tree = psutil.Process(self.pid).children(recursive=True)
        self._signal(signal.SIGKILL)
        for process in tree:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def processor_seconds(self) -> float:
        """Returns the processor time that it has used, without its descendants'."""
        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return times.user + times.system

    def state(self) -> str:
        """Returns the kernel's word for its state, such as `sleeping` or `stopped`."""
        try:
            return str(psutil.Process(self.pid).status())
        except psutil.Error:
            return "gone"

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def describe_exit(status: int) -> str:
    """Describes an exit status in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def ending_with_us(command: Sequence[str]) -> tuple[str, ...]:
    """Returns a command line for a program that dies with this process."""
    return (sys.executable, "-m", LAUNCHER, str(os.getpid()), *command)


async def first_of(*works: Awaitable[Any], seconds: float | None = None) -> list[asyncio.Future[Any] | None]:
    """Waits until one of them has ended, for at most `seconds`, and cancels the others. Returns those that have ended,
    each in its place, and None for the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return [task if task in done else None for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(pipe: asyncio.StreamReader, log: LogFile) -> None:
    pending = b""
    try:
        while chunk := await pipe.read(READ_BYTES):
            *lines, pending = (pending + chunk).split(b"\n")
            if len(pending) > MAX_LINE_BYTES:
                lines, pending = [*lines, pending], b""
            if lines:
                log.write(lines)
    finally:
        if pending:
            log.write([pending])
