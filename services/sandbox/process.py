"""The service's handle of a confined process, which reads untrusted input.

The process limits itself (services/sandbox/limits.py), handles one order at a time, and may be killed by any of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from services.errors import Internal, Unsupported
from services.sandbox.child import Begun, ChildReady, Unusable
from services.worker.process import WorkerDied, WorkerProcess

M = TypeVar("M")
A = TypeVar("A")

# glibc: one arena for all threads, and freed memory goes back to the system.
ENVIRON = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "1048576"}
START_SECONDS = 60.0

log = logging.getLogger(__name__)


class ConfinedGone(Exception):
    """The order that a process had begun to read killed the process, or took too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfinedProgram:
    """The program of a confined process."""

    module: str  # executed as `python -m module FD`
    messages: Any  # union of the messages that it sends
    name: str  # for the log
    kind: str  # for errors, such as "the sound decoder"
    first: object = None  # first message to the process, sent before ChildReady
    most_orders: int | None = None  # the process is then replaced, which bounds what its libraries leak


class ConfinedProcess(Generic[M]):
    """A warmed-up process. If an order does not end well, the process gets no other order."""

    def __init__(self, program: ConfinedProgram, process: WorkerProcess[M]) -> None:
        self._program = program
        self._process = process
        self._orders = 0
        self._unfinished = False  # an order has begun and has not ended well
        self._deadline = 0.0  # of the current order's answer, on the event loop's clock
        self.idle_since = time.monotonic()

    @classmethod
    async def start(cls, program: ConfinedProgram) -> ConfinedProcess[M]:
        """Starts a process and waits until it is warmed up and has sent `ChildReady`.

        Raises:
            Unsupported: it cannot work here; the message names the missing package.
            Internal: it does not start.
        """
        process: WorkerProcess[Any] = await WorkerProcess.start(program.module, program.messages, program.name, ENVIRON)
        try:
            if program.first is not None:
                process.send(program.first)
            async with asyncio.timeout(START_SECONDS):
                message = await process.receive()
            _check_ready(message, program.kind)
        except (WorkerDied, TimeoutError) as error:
            await process.close()
            log.exception("%s does not start", program.kind)
            raise Internal(f"{program.kind} cannot be started: its log has the reason") from error
        except BaseException:
            await process.close()
            raise
        return cls(program, process)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def kind(self) -> str:
        """The kind of process, for errors."""
        return self._program.kind

    @property
    def reusable(self) -> bool:
        """True if the process may take another order."""
        most = self._program.most_orders
        return not self._unfinished and (most is None or self._orders < most)

    async def begin(self, order: object, seconds: float) -> bool:
        """Sends an order, which must begin and be answered within `seconds`. Returns False if it does not begin."""
        self._orders += 1
        self._unfinished = True
        self._deadline = asyncio.get_running_loop().time() + seconds
        self.send(order)
        try:
            return isinstance(await self._receive_in_time(), Begun)
        except ConfinedGone:
            return False

    async def answer(self, *kinds: type[A]) -> A:
        """Returns the only answer to an order, which must be of one of these classes.

        Raises:
            ConfinedGone: the order killed the process, or took too long.
            Internal: the answer is of another class.
        """
        answer = await self._receive_in_time()
        if not isinstance(answer, kinds):
            raise Internal(f"{self.kind} sent {type(answer).__name__} instead of an answer")
        self.finish()
        return answer

    def finish(self) -> None:
        """Marks the order as ended well."""
        self._unfinished = False

    def send(self, message: object) -> None:
        """Queues one message."""
        self._process.send(message)

    async def receive(self) -> M:
        """Waits for one message. Raises WorkerDied when the process ended."""
        return await self._process.receive()

    async def close(self) -> None:
        """Ends the process immediately."""
        await self._process.close()

    async def _receive_in_time(self) -> M:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self.receive()
        except (WorkerDied, TimeoutError) as error:
            log.warning("%s (%s) %d does not answer", self.kind, self._program.name, self.pid)
            raise ConfinedGone from error


def _check_ready(message: object, kind: str) -> None:
    if isinstance(message, Unusable):
        raise Unsupported(message.message)
    if not isinstance(message, ChildReady):
        raise Internal(f"{kind} sent {type(message).__name__} before it was ready")
