"""Keeps child processes running: starts them in order, restarts them after a crash, stops them in reverse order.

It also asks each child regularly whether it lives, and replaces a child that does not answer. It knows neither gRPC nor
Envoy: each `Service` brings its own readiness check, question and drain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.cli.problem import Problem
from services.cli.serve.process import ChildProcess, LogFile, Program, describe_exit, first_of
from services.telemetry.logs import JsonFormatter

START_SECONDS = 60.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
# A child that has run this long counts as stable: after a crash it restarts as quickly as the first time.
STABLE_SECONDS = 60.0
# Time for a child to end after SIGTERM, beyond the time for running requests.
STOP_SECONDS = 10.0
# Pause between two questions whether a child lives.
ASK_SECONDS = 3.0
# The unit in which silence is counted.
TICK_SECONDS = 1.0
# A child that uses more than this share of a processor is busy, and gets so many times as long.
BUSY_SHARE = 0.02
BUSY_PATIENCE = 10
# Time for a child that hangs to end after SIGTERM, which a stopped process ignores.
HUNG_STOP_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Service:
    """A child with its readiness check, question and drain."""

    program: Program
    wait_ready: Callable[[], Awaitable[None]]  # returns once it can serve
    wait_answer: Callable[[], Awaitable[None]]  # asks whether it lives; returns once it gives any answer
    drain: Callable[[], Awaitable[None]]  # returns once the child is idle, or the time for that is over
    with_previous: bool = False  # started and stopped together with the previous one: neither needs the other


class Supervisor:
    """Runs services until `stop`."""

    def __init__(
        self,
        services: Sequence[Service],
        logs: Path,
        say: Callable[[str], None],
        on_change: Callable[[dict[str, int]], None],
        hang_seconds: float = 0.0,
    ) -> None:
        """`hang_seconds`: a child that is silent for so long is replaced; 0: never."""
        self._lifeline, self._lifeline_end = os.pipe()
        self._on_change = on_change
        self._groups: list[list[_Keeper]] = []  # services that start together
        for service in services:
            if not (service.with_previous and self._groups):
                self._groups.append([])
            self._groups[-1].append(_Keeper(service, logs, self._lifeline, say, hang_seconds))
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
        self._report_children()

    async def renew(self, names: Iterable[str], seconds: float) -> None:
        """Restarts these services one after the other, each once it is idle, or after that many seconds."""
        wanted = set(names)
        for keeper in self._keepers:
            if keeper.name in wanted:
                await keeper.renew(seconds + STOP_SECONDS)

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
            self._report_children()

    def _report_children(self) -> None:
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

    def __init__(
        self, service: Service, logs: Path, lifeline: int, say: Callable[[str], None], hang_seconds: float
    ) -> None:
        self.name = service.program.name
        self.log = LogFile(logs / f"{self.name}.log")
        self.child: ChildProcess | None = None
        self._service = service
        self._lifeline = lifeline
        self._say = say
        self._hang_seconds = hang_seconds
        self._pause = FIRST_PAUSE
        self._ready_since = 0.0
        self._renewal: asyncio.Event | None = None  # set by the end of a wanted restart

    async def start(self) -> None:
        """Starts the child and waits until it is ready; kills it on a timeout."""
        self.child = await ChildProcess.start(self._service.program, self.log, self._lifeline)
        ended, ready = await first_of(self.child.wait(), self._service.wait_ready(), seconds=START_SECONDS)
        if ended:
            self.child = None
            raise Problem(self._failure(describe_exit(ended.result())))
        if not ready:
            await self.kill()
            raise Problem(self._failure(f"was not ready after {START_SECONDS:g} seconds"))
        ready.result()
        self._ready_since = asyncio.get_running_loop().time()

    async def restart(self) -> None:
        """Waits for the child to end or to hang, and restarts it with as many attempts as needed."""
        if self.child:
            what = await self._end_of(self.child)
            self.child = None
            if asyncio.get_running_loop().time() - self._ready_since >= STABLE_SECONDS:
                self._pause = FIRST_PAUSE
            if not self._renewal:
                self._say(f"{self.name} {what} (log: {self.log.path}); restarting it in {self._pause:g} s")
        while not self.child:
            if not self._renewal:
                await asyncio.sleep(self._pause)
                self._pause = min(self._pause * 2, LONGEST_PAUSE)
            try:
                await self.start()
            except Problem as problem:
                self._say(f"{str(problem).splitlines()[0]}; trying again in {self._pause:g} s")
                self._end_renewal()
        self._say(f"{self.name} is running again")
        self._end_renewal()

    async def _end_of(self, child: ChildProcess) -> str:
        """Waits for the child to end, and ends it once it hangs; returns what happened, in words."""
        ended, hung = await first_of(child.wait(), self._wait_hung(child))
        if ended or not hung:
            return describe_exit(await child.wait())
        what = f"did not answer for {hung.result():g} s (ALLM_HANG_SECONDS; the process was {child.state()})"
        record = {"name": __name__, "levelname": "ERROR", "msg": f"{self.name} {what}: killing it"}
        self.log.write([JsonFormatter().format(logging.makeLogRecord(record)).encode()])
        await child.stop(HUNG_STOP_SECONDS)
        return f"{what} and was killed"

    async def _wait_hung(self, child: ChildProcess) -> float:
        """Returns once the child hangs: the seconds of its silence."""
        while not self._hang_seconds or not (silence := await self._ask(child)):  # noqa: ASYNC110 - another process
            await asyncio.sleep(ASK_SECONDS)
        return silence

    async def _ask(self, child: ChildProcess) -> float:
        """Asks the child whether it lives; returns 0 if it answers, else the seconds of its silence.

        The answer may take the whole time: a slow child is not a hung one. Silence is counted in ticks, not read from a
        clock. After this process was suspended or got no processor, its child could not answer either, and the gap is
        only one tick. A child that computes is more likely busy, such as with many large bodies at once.
        """
        answer = asyncio.ensure_future(self._service.wait_answer())
        ticks, counted, used = 0, 0.0, child.processor_seconds()
        try:
            while counted < self._hang_seconds / TICK_SECONDS:
                await asyncio.wait((answer,), timeout=TICK_SECONDS)
                if answer.done():
                    return 0.0
                before, used = used, child.processor_seconds()
                ticks += 1
                counted += 1 / BUSY_PATIENCE if used - before > BUSY_SHARE * TICK_SECONDS else 1
            return ticks * TICK_SECONDS
        finally:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)

    async def renew(self, seconds: float) -> None:
        """Stops the child, killing it after that many seconds; returns once `restart` has tried to start it again."""
        if self.child:
            renewal = self._renewal = asyncio.Event()
            await self.child.stop(seconds)
            await renewal.wait()

    def _end_renewal(self) -> None:
        if self._renewal:
            self._renewal.set()
            self._renewal = None

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
