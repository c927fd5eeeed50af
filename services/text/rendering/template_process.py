"""The service's side of a renderer process, which compiles and renders one model's chat template."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence

from services.cancellation import is_cancelled
from services.errors import AllmError, Internal, InvalidRequest, ModelInvalid, ModelNotReady, Overloaded
from services.sandbox.messages import Begun
from services.sandbox.start import ConfinedGone, ConfinedStart
from services.text.conversation import Message, ReasoningEffort, Tool
from services.text.prompt import thinks
from services.text.rendering.messages import (
    Answer,
    Broken,
    FromRenderer,
    Prepare,
    Prepared,
    Refused,
    Render,
    Rendered,
    ToRenderer,
)
from services.worker.process import WorkerDied, WorkerProcess

MODULE = "services.text.rendering"
CPU_SECONDS = 5.0  # for a template, and for each conversation; long ones need a tenth of it
ANSWER_SECONDS = 60.0  # wall time; the process has a separate, shorter limit of processor time
TRIES = 2  # attempts, if the process had ended while idle
TOOL_FIELDS = ("name", "description", "parameters", "strict")
LIMITS = "more processor time or memory than a template may have"

log = logging.getLogger(__name__)


class TemplateProcess:
    """One model's template. If a conversation ends the process, only the next one pays, by starting a new process."""

    def __init__(self, model_id: str, queue: int, cpu_seconds: float = CPU_SECONDS) -> None:
        """`queue`: the most conversations that may wait. `cpu_seconds`: the processor time limit of each."""
        self._model_id = model_id
        self._queue = queue
        self._cpu_seconds = cpu_seconds
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._prepare: Prepare | None = None
        self._starting: asyncio.Task[WorkerProcess[FromRenderer]] | None = None
        self._tasks: set[asyncio.Task[Answer]] = set()
        self.thinks = False  # whether the template supports a reasoning effort; if not, requests must not set one

    def start(self) -> asyncio.Task[WorkerProcess[FromRenderer]]:
        """Starts the process in the background, before `prepare` needs it."""
        self._starting = self._starting or asyncio.create_task(_started(self._model_id))
        return self._starting

    async def prepare(self, source: str, *, bos: str, eos: str, add_bos: bool) -> None:
        """Compiles the template; an empty one means the default template.

        Raises:
            ModelInvalid: it does not compile, or not within its limits.
            Internal: the process cannot be started.
        """
        order = Prepare(source=source, bos=bos, eos=eos, add_bos=add_bos, cpu_seconds=self._cpu_seconds)
        try:
            answer = await self._apart(order)
        except ConfinedGone as gone:
            raise ModelInvalid(f"the model's chat template takes {LIMITS}, even before a conversation") from gone
        if isinstance(answer, Broken):
            raise ModelInvalid(answer.message)
        self._prepare, self.thinks = order, thinks(source)

    async def render(
        self, messages: tuple[Message, ...], tools: Sequence[Tool] = (), effort: ReasoningEffort = ""
    ) -> str:
        """Returns the prompt up to the start of the assistant's answer. Cancelling the call does not stop the renderer.

        Raises:
            InvalidRequest: the template rejects the conversation (its message is quoted), fails, or exceeds a limit.
            Overloaded: too many conversations wait.
            ModelNotReady: the model is closed during the call.
            Internal: the process cannot be started.
        """
        if self._waiting >= self._queue:
            raise Overloaded(f"{self._waiting} prompts of {self._model_id} are being rendered: try again later")
        told = json.dumps([{name: getattr(tool, name) for name in TOOL_FIELDS} for tool in tools])
        try:
            answer = await self._apart(Render(messages=messages, tools=told, effort=effort))
        except ConfinedGone as gone:
            message = f"the model's chat template takes {LIMITS} with this conversation"
            raise InvalidRequest(message, param="messages") from gone
        if isinstance(answer, Rendered):
            return answer.text
        if isinstance(answer, Refused):
            raise InvalidRequest(answer.message, param="messages")
        raise Internal(f"the renderer of {self._model_id} said {type(answer).__name__} in the place of a prompt")

    async def close(self) -> None:
        """Stops the process immediately, even while it renders."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._end()

    async def _apart(self, order: ToRenderer) -> Answer:
        """Returns the answer to an order. The exchange survives its caller, so that the channel stays in sync."""
        task = asyncio.create_task(self._exchange(order))
        self._tasks.add(task)
        self._waiting += 1
        task.add_done_callback(self._done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not is_cancelled():
                # Its model was closed, for example because its worker died; the next one gets a new renderer.
                raise ModelNotReady(f"{self._model_id} has just been ended; ask again") from None
            raise

    def _done(self, task: asyncio.Task[Answer]) -> None:
        self._waiting -= 1
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved; the caller may be gone

    async def _exchange(self, order: ToRenderer) -> Answer:
        async with self._turn:
            for last in (*(False,) * (TRIES - 1), True):
                try:
                    return await self._answer(await self._process(), order)
                except ConfinedGone as gone:
                    log.warning("the renderer of %s ended", self._model_id, extra={"begun": gone.begun})
                    await self._end()
                    if gone.begun or last:
                        raise
        raise AssertionError("the last try has raised")

    async def _process(self) -> WorkerProcess[FromRenderer]:
        """Returns the process; a restarted one gets the template again."""
        again = self._starting is None
        try:
            process = await self.start()
        except AllmError:
            self._starting = None
            raise
        if again and self._prepare and not isinstance(await self._answer(process, self._prepare), Prepared):
            raise Internal(f"the chat template of {self._model_id} was compiled before, and now is not")
        return process

    async def _answer(self, process: WorkerProcess[FromRenderer], order: ToRenderer) -> Answer:
        begun = False
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                process.send(order)
                begun = isinstance(await process.receive(), Begun)
                answer = await process.receive()
        except (WorkerDied, TimeoutError) as error:
            raise ConfinedGone(begun=begun) from error
        if not isinstance(answer, Answer):
            raise Internal(f"the renderer of {self._model_id} said {type(answer).__name__} in the place of an answer")
        return answer

    async def _end(self) -> None:
        starting, self._starting = self._starting, None
        if starting is None:
            return
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:
            await starting.result().close()


async def _started(model_id: str) -> WorkerProcess[FromRenderer]:
    """Starts a process that is ready for a template. Raises Internal if that fails."""
    start = ConfinedStart(module=MODULE, messages=FromRenderer, name=model_id, kind="the renderer of prompts")
    return await start.run()
