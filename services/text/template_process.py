"""The service's side of a renderer process, which compiles and renders one model's chat template."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from services.errors import InvalidRequest, ModelInvalid, ModelNotReady
from services.rpc.deadline import is_cancelled
from services.sandbox.child import OrderRefused
from services.sandbox.pool import ProcessPool
from services.sandbox.process import ConfinedGone, ConfinedProcess, ConfinedProgram
from services.text.conversation import Message, Picture, ReasoningEffort, Tool
from services.text.prompt import FromRenderer, Prepare, Prepared, Render, Rendered, thinks

MODULE = "services.text.prompt"
CPU_SECONDS = 5.0  # for a template, and for each conversation; long ones need a tenth of it
ANSWER_SECONDS = 60.0  # wall time; the process has a separate, shorter limit of processor time
TOOL_FIELDS = ("name", "description", "parameters", "strict")
LIMITS = "more processor time or memory than a template is allowed"

A = TypeVar("A", Prepared, Rendered)


class TemplateProcess:
    """One model's template. If a conversation ends the process, only the next one pays, by starting a new process."""

    def __init__(self, model_id: str, queue: int, cpu_seconds: float = CPU_SECONDS) -> None:
        """`queue`: the most conversations that may wait. `cpu_seconds`: the processor time limit of each."""
        self._model_id = model_id
        self._program = ConfinedProgram(
            module=MODULE, messages=FromRenderer, name=model_id, kind="the renderer of prompts"
        )
        self._pool: ProcessPool[FromRenderer] = ProcessPool(
            self._start,
            most=1,
            queue=max(0, queue - 1),
            seconds=ANSWER_SECONDS,
            busy=lambda waiting: f"{waiting + 1} prompts of {model_id} are being rendered: try again later",
        )
        self._cpu_seconds = cpu_seconds
        self._prepare: Prepare | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.thinks = False  # whether the template supports a reasoning effort; if not, requests must not set one

    def start(self) -> None:
        """Starts the process in the background, before `prepare` needs it."""
        self._pool.start_soon()

    async def prepare(self, source: str, *, bos: str, eos: str, add_bos: bool) -> None:
        """Compiles the template; an empty one means the default template.

        Raises:
            ModelInvalid: it does not compile, or not within its limits.
            Internal: the process cannot be started.
        """
        order = Prepare(source=source, bos=bos, eos=eos, add_bos=add_bos, cpu_seconds=self._cpu_seconds)
        try:
            answer = await self._apart(order, Prepared)
        except ConfinedGone as gone:
            raise ModelInvalid(f"the model's chat template takes {LIMITS}, even before a conversation") from gone
        if isinstance(answer, OrderRefused):
            raise ModelInvalid(answer.message)
        self._prepare, self.thinks = order, thinks(source)

    def unused(self, variables: Iterable[str]) -> list[str]:
        """Returns the names that the template does not mention."""
        source = self._prepare.source if self._prepare else ""
        return [name for name in variables if not re.search(rf"\b{re.escape(name)}\b", source)]

    async def render(
        self,
        messages: tuple[Message, ...],
        tools: Sequence[Tool] = (),
        effort: ReasoningEffort = "",
        variables: Mapping[str, Any] = MappingProxyType({}),
        mark: str = "",
    ) -> str:
        """Returns the prompt up to the start of the assistant's answer, with `mark` for each picture.

        Cancelling the call does not stop the renderer.

        Raises:
            InvalidRequest: the template rejects the conversation (its message is quoted), fails, or exceeds a limit.
            Overloaded: too many conversations wait.
            ModelNotReady: the model is closed during the call.
            Internal: the process cannot be started.
        """
        fields = json.dumps([{name: getattr(tool, name) for name in TOOL_FIELDS} for tool in tools])
        try:
            order = Render(
                messages=tuple(map(_places_only, messages)),
                tools=fields,
                effort=effort,
                variables=json.dumps(dict(variables)),
                mark=mark,
            )
            answer = await self._apart(order, Rendered)
        except ConfinedGone as gone:
            message = f"the model's chat template takes {LIMITS} with this conversation"
            raise InvalidRequest(message, param="messages") from gone
        if isinstance(answer, OrderRefused):
            raise InvalidRequest(answer.message, param="messages")
        return answer.text

    async def close(self) -> None:
        """Stops the process immediately, even while it renders."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._pool.close()

    async def _apart(self, order: Prepare | Render, kind: type[A]) -> A | OrderRefused:
        """Returns the answer to an order. The exchange survives its caller, so that the process stays in use."""
        task = asyncio.create_task(self._exchange(order, kind))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not is_cancelled():
                # Its model was closed, for example because its worker died; the next one gets a new renderer.
                raise ModelNotReady(f"{self._model_id} was just ended; try again") from None
            raise

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved; the caller may be gone

    async def _exchange(self, order: Prepare | Render, kind: type[A]) -> A | OrderRefused:
        async with self._pool.slot(), self._pool.process(order) as process:
            return await process.answer(kind, OrderRefused)

    async def _start(self) -> ConfinedProcess[FromRenderer]:
        """Starts a process; a later one gets the template again."""
        process: ConfinedProcess[FromRenderer] = await ConfinedProcess.start(self._program)
        try:
            if self._prepare:
                await process.begin(self._prepare, ANSWER_SECONDS)
                await process.answer(Prepared)
        except BaseException:
            await process.close()
            raise
        return process


def _places_only(message: Message) -> Message:
    """Returns a message with pictures that have only their places."""
    if not message.pictures:
        return message
    return replace(message, pictures=tuple(Picture(at=picture.at, param="") for picture in message.pictures))
