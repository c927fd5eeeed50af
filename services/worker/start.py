"""The start of a worker: the process, its first message, and the wait until its model is loaded."""

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
    """How to start the worker of a model."""

    module: str  # executed as `python -m module FD`
    messages: Any  # the union of the messages that it sends
    model_id: str
    environ: Mapping[str, str]
    load: object  # the first message to it
    seconds: float  # it has failed when it takes longer to be ready
    python: str = ""  # the interpreter, where it is another than ours

    async def run(self, adopt: Callable[[WorkerProcess[M], M], R]) -> R:
        """Starts the worker and hands it to `adopt` with what it said when it was ready. No process is left behind
        when that, or `adopt`, raises.

        Raises:
            Timeout: the model was not loaded in time.
            Internal: the worker died.
            AllmError: whatever the worker says of a model that it could not load.
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
