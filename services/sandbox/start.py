"""Starts a confined process, which reads untrusted input, and waits until it is ready.

The process limits itself (services/sandbox/limits.py), handles one order at a time, and may be killed by any of them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from services.errors import Internal, Unsupported
from services.sandbox.messages import Ready, Unusable
from services.worker.process import WorkerDied, WorkerProcess

# glibc: one arena for all threads, and freed memory goes back to the system.
ENVIRON = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "1048576"}
START_SECONDS = 60.0

log = logging.getLogger(__name__)


class ConfinedGone(Exception):
    """The process ended; `begun` is true if it had begun to read its order."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__()
        self.begun = begun


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfinedStart:
    """The parameters of a confined process."""

    module: str  # executed as `python -m module FD`
    messages: Any  # union of the messages that it sends
    name: str  # for the log
    kind: str  # for errors, such as "a sound decoder"
    first: object = None  # first message to the process, sent before Ready

    async def run(self) -> WorkerProcess[Any]:
        """Starts the process and waits until it is warmed up and has sent `Ready`.

        Raises:
            Unsupported: it cannot work here; the message names the missing package.
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
