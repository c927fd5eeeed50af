"""Keeps child processes running: starts them in order, restarts them after a crash, stops them in reverse order.

It knows neither gRPC nor Envoy: each `Service` brings its own readiness check and drain.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.cli.problem import Problem
from services.cli.serve.log_file import LogFile
from services.cli.serve.process import ChildProcess, Program, describe_exit

START_SECONDS = 60.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
# A child that has run this long counts as stable: after a crash it restarts as quickly as the first time.
STABLE_SECONDS = 60.0
# Time for a child to end after SIGTERM, beyond the time for running requests.
STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Service:
    """A child with its readiness check and drain."""

    program: Program
    wait_ready: Callable[[], Awaitable[None]]  # returns once it can serve
    drain: Callable[[], Awaitable[None]]  # returns once the child is idle, or the time for that is over
    beside: bool = False  # started and stopped together with the previous one: neither needs the other


class Supervisor:
    """Runs services until `stop`."""

    def __init__(
        self,
        services: Sequence[Service],
        logs: Path,
        say: Callable[[str], None],
        on_change: Callable[[dict[str, int]], None],
    ) -> None:
        self._lifeline, self._lifeline_end = os.pipe()
        self._on_change = on_change
        self._groups: list[list[_Keeper]] = []  # services that start together
        for service in services:
            if not (service.beside and self._groups):
                self._groups.append([])
            self._groups[-1].append(_Keeper(service, logs, self._lifeline, say))
        self._keepers = [keeper for group in self._groups for keeper in group]
        self._watches: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts all services, each after the previous ones are ready, and then watches them.

        Raises:
            Problem: a service does not become ready.
        """
        for group in self._groups:
            await _together(keeper.start() for keeper in group)
        self._watches = [asyncio.create_task(self._watch(keeper)) for keeper in self._keepers]
        self._tell()

    async def stop(self) -> None:
        """Drains and stops all services, the last started first."""
        await self._stop_watching()
        for group in reversed(self._groups):
            await _together(keeper.stop() for keeper in group)

    async def kill(self) -> None:
        """Kills all services."""
        await self._stop_watching()
        for keeper in reversed(self._keepers):
            await keeper.kill()

    def close(self) -> None:
        """Closes pipes and logs."""
        for keeper in self._keepers:
            keeper.log.close()
        for end in (self._lifeline, self._lifeline_end):
            with contextlib.suppress(OSError):
                os.close(end)

    async def _stop_watching(self) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self._watches = []

    async def _watch(self, keeper: _Keeper) -> None:
        while True:
            await keeper.restart()
            self._tell()

    def _tell(self) -> None:
        self._on_change({keeper.name: keeper.child.pid for keeper in self._keepers if keeper.child})


async def _together(steps: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs all steps concurrently. Raises the first error of a step, and cancels the others."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for step in steps:
                tasks.create_task(step)
    except ExceptionGroup as several:
        raise several.exceptions[0] from None


class _Keeper:
    """Keeps a service running."""

    def __init__(self, service: Service, logs: Path, lifeline: int, say: Callable[[str], None]) -> None:
        self.name = service.program.name
        self.log = LogFile(logs / f"{self.name}.log")
        self.child: ChildProcess | None = None
        self._service = service
        self._lifeline = lifeline
        self._say = say
        self._pause = FIRST_PAUSE
        self._ready_since = 0.0

    async def start(self) -> None:
        """Starts the child and waits until it is ready; kills it on a timeout."""
        self.child = await ChildProcess.start(self._service.program, self.log, self._lifeline)
        ended = asyncio.create_task(self.child.wait())
        ready = asyncio.ensure_future(self._service.wait_ready())
        try:
            await asyncio.wait((ended, ready), timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                self.child = None
                raise Problem(self._failure(describe_exit(ended.result())))
            if not ready.done():
                await self.kill()
                raise Problem(self._failure(f"was not ready after {START_SECONDS:g} seconds"))
            ready.result()
            self._ready_since = asyncio.get_running_loop().time()
        finally:
            for task in (ended, ready):
                task.cancel()
            await asyncio.gather(ended, ready, return_exceptions=True)

    async def restart(self) -> None:
        """Waits for the child to end, and restarts it with as many attempts as needed."""
        if self.child:
            status = await self.child.wait()
            self.child = None
            if asyncio.get_running_loop().time() - self._ready_since >= STABLE_SECONDS:
                self._pause = FIRST_PAUSE
            what = f"{self.name} {describe_exit(status)} (log: {self.log.path})"
            self._say(f"{what}; starting it again in {self._pause:g} s")
        while not self.child:
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            try:
                await self.start()
            except Problem as problem:
                self._say(f"{str(problem).splitlines()[0]}; trying again in {self._pause:g} s")
        self._say(f"{self.name} is back")

    async def stop(self) -> None:
        """Drains the child, then stops it."""
        if self.child:
            await self._service.drain()
            await self.child.stop(STOP_SECONDS)
            self.child = None

    async def kill(self) -> None:
        """Kills the child."""
        if self.child:
            self.child.kill()
            await self.child.wait()
            self.child = None

    def _failure(self, what: str) -> str:
        lines = [f"{self.name} {what}; the end of {self.log.path}:", *self.log.tail()]
        return "\n  ".join(lines)
