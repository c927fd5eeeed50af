"""The start of a process that reads what strangers send, and the first things that it says.

It is confined (services/sandbox/limits.py), has one order at a time, and may be lost with any of them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from services.errors import Internal, Unsupported
from services.sandbox.messages import Ready, Unusable
from services.worker.process import WorkerDied, WorkerProcess

# glibc: no arena for each thread, and what an order took is given back.
ENVIRON = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "1048576"}
START_SECONDS = 60.0

log = logging.getLogger(__name__)


class ConfinedGone(Exception):
    """The process ended; `begun` says whether with the order that it was given."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__()
        self.begun = begun


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfinedStart:
    """How to start one."""

    module: str  # executed as `python -m module FD`
    messages: Any  # the union of the messages that it sends
    name: str  # for its log
    kind: str  # what it is, for errors: "a sound decoder"
    first: object = None  # what it is told before it can say anything

    async def run(self) -> WorkerProcess[Any]:
        """A process that has been warmed up: it has said `Ready`.

        Raises:
            Unsupported: it says that it cannot work here, and what is missing.
            Internal: it does not start.
        """
        process: WorkerProcess[Any] = await WorkerProcess.start(self.module, self.messages, self.name, ENVIRON)
        try:
            if self.first is not None:
                process.send(self.first)
            async with asyncio.timeout(START_SECONDS):
                said = await process.receive()
        except (WorkerDied, TimeoutError) as error:
            await process.close()
            log.exception("%s does not start", self.kind)
            raise Internal(f"{self.kind} cannot be started: its log says why") from error
        except BaseException:
            await process.close()
            raise
        if isinstance(said, Ready):
            return process
        await process.close()
        if isinstance(said, Unusable):
            raise Unsupported(said.message)
        raise Internal(f"{self.kind} said {type(said).__name__} before it was ready")
