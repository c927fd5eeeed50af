"""Starts a worker: launches the process, sends the first message, and waits until the model is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from services.errors import Internal, Timeout, from_code
from services.worker.messages import Failed, Loading
from services.worker.process import WorkerDied, WorkerProcess

M = TypeVar("M")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart(Generic[M]):
    """The parameters of a model's worker."""

    module: str  # executed as `python -m module FD`
    messages: Any  # union of the messages that it sends
    model_id: str
    environ: Mapping[str, str]
    load: object  # first message to the worker
    seconds: float  # time limit of loading
    python: str = ""  # interpreter; empty: ours

    async def run(self, adopt: Callable[[WorkerProcess[M], M], R]) -> R:
        """Starts the worker and passes it to `adopt`, with its ready message. If starting or `adopt` raises, no process
        is left behind.

        Raises:
            Timeout: the model was not loaded in time.
            Internal: the worker died.
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
            ready = await asyncio.wait_for(_ready(worker), self.seconds)
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


async def _ready(worker: WorkerProcess[M]) -> M:
    while True:
        message = await worker.receive()
        if isinstance(message, Failed):
            raise from_code(message.code, message.message)
        if not isinstance(message, Loading):
            return message
