"""A child process of the supervisor: starts it, logs its output, stops it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from services.cli.serve.log_file import LogFile

LAUNCHER = "services.cli.serve.child"
LIFELINE_VARIABLE = "ALLM_LIFELINE_FD"
READ_BYTES = 65536
MAX_LINE_BYTES = 1024 * 1024


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
            sys.executable,
            "-m",
            LAUNCHER,
            str(os.getpid()),
            *program.command,
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
        done, pending = await asyncio.wait(self._pumps, timeout=1.0)
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
        """Sends SIGKILL."""
        self._signal(signal.SIGKILL)

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


async def _pump(pipe: asyncio.StreamReader, log: LogFile) -> None:
    pending = b""
    while chunk := await pipe.read(READ_BYTES):
        *lines, pending = (pending + chunk).split(b"\n")
        if len(pending) > MAX_LINE_BYTES:
            lines, pending = [*lines, pending], b""
        if lines:
            log.write(lines)
    if pending:
        log.write([pending])
