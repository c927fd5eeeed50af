"""A model's chat template, seen from the service: compiled and rendered in a process of its own, which it may end."""

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
CPU_SECONDS = 5.0  # for a template, and for any conversation: long ones take a tenth
ANSWER_SECONDS = 60.0  # of the clock; the process has its own, shorter limit of processor time
TRIES = 2  # with processes that had ended while they waited
TOOL_FIELDS = ("name", "description", "parameters", "strict")
LIMITS = "more processor time or memory than a template may have"

log = logging.getLogger(__name__)


class TemplateProcess:
    """One model's template. A conversation that ends the process costs the next one its start, and no more."""

    def __init__(self, model_id: str, queue: int, cpu_seconds: float = CPU_SECONDS) -> None:
        """At most `queue` conversations may wait for it, and each may take so much of the processor's time."""
        self._model_id = model_id
        self._queue = queue
        self._cpu_seconds = cpu_seconds
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._prepare: Prepare | None = None
        self._starting: asyncio.Task[WorkerProcess[FromRenderer]] | None = None
        self._tasks: set[asyncio.Task[Answer]] = set()
        self.thinks = False  # whether the template knows how much to think; one that does not cannot be asked for it

    def start(self) -> asyncio.Task[WorkerProcess[FromRenderer]]:
        """Begins to start the process, so that `prepare` finds it there."""
        self._starting = self._starting or asyncio.create_task(_started(self._model_id))
        return self._starting

    async def prepare(self, source: str, *, bos: str, eos: str, add_bos: bool) -> None:
        """Compiles the template; an empty one stands for the default template.

        Raises:
            ModelInvalid: it does not compile, or not within its limits.
            Internal: no process starts here.
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
        """The prompt, up to where the assistant begins to speak. A caller who gives up stops nothing.

        Raises:
            InvalidRequest: the template refuses the conversation (its own words), fails on it, or takes too much.
            Overloaded: too many conversations wait.
            ModelNotReady: the model ends meanwhile.
            Internal: no process starts here.
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
        """Ends the process at once, with whatever it is at."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._end()

    async def _apart(self, order: ToRenderer) -> Answer:
        """The answer to an order, which goes on without its caller: the process must not be left in the middle."""
        task = asyncio.create_task(self._exchange(order))
        self._tasks.add(task)
        self._waiting += 1
        task.add_done_callback(self._done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not is_cancelled():
                # Its model ends, as when its worker has died: the next one has a renderer of its own.
                raise ModelNotReady(f"{self._model_id} has just been ended; ask again") from None
            raise

    def _done(self, task: asyncio.Task[Answer]) -> None:
        self._waiting -= 1
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone

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
        """The process, with its template in it once that is known."""
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
    """A process that can take a template. Raises Internal where there is none."""
    start = ConfinedStart(module=MODULE, messages=FromRenderer, name=model_id, kind="the renderer of prompts")
    return await start.run()
