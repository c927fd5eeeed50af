"""The service's side of the process that checks the JSON Schemas and grammars of requests."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from typing import Any

from services.errors import InvalidRequest
from services.sandbox.child import OrderRefused
from services.sandbox.pool import ProcessPool
from services.sandbox.process import ConfinedGone, ConfinedProcess, ConfinedProgram
from services.text.conversation import ChatRequest, OutputFormat
from services.text.schema import OUTPUT, CheckSchemas, FromChecker, SchemasChecked

PROGRAM = ConfinedProgram(
    module="services.text.schema", messages=FromChecker, name="schemas", kind="the checker of JSON Schemas"
)
ANSWER_SECONDS = 30.0  # wall time; the process has a separate, shorter limit of processor time
REMEMBERED = 64  # requests whose schemas are known: most callers send the same tools with every turn
REMEMBERED_BYTES = 256 * 1024  # of a request's schemas


class SchemaChecker:
    """Checks the schemas of requests in one process; callers take turns. The caller must close it."""

    def __init__(self, queue: int) -> None:
        """`queue`: the most requests that may wait."""
        self._pool: ProcessPool[FromChecker] = ProcessPool(
            lambda: ConfinedProcess.start(PROGRAM),
            most=1,
            queue=queue,
            seconds=ANSWER_SECONDS,
            busy=lambda waiting: f"the schemas of {waiting} requests are waiting to be checked: try again later",
            spare=1,
        )
        self._known: OrderedDict[CheckSchemas, SchemasChecked | OrderRefused] = OrderedDict()

    async def close(self) -> None:
        """Ends the process."""
        await self._pool.close()

    async def checked(self, request: ChatRequest) -> ChatRequest:
        """Returns the request with `strict` of its tools settled, and with the schemas of its grammar.

        Raises:
            InvalidRequest: a schema cannot be followed, or takes too long to compile.
            Overloaded: too many requests wait.
            Internal: the process cannot be started.
        """
        order = order_of(request)
        if order is None:
            return dataclasses.replace(request, tool_schemas={})
        answer = await self._answer(order)
        if isinstance(answer, OrderRefused):
            raise InvalidRequest(answer.message, param=answer.param or None)
        return settled(request, answer)

    async def lark(self, output: OutputFormat) -> str:
        """Returns the grammar of an answer's text that is no schema; empty for others. Raises as `checked`."""
        kind, text = _output_of(output)
        answer = await self._answer(CheckSchemas(output=text, kind=kind, tools=(), constrained=False)) if text else None
        if isinstance(answer, OrderRefused):
            raise InvalidRequest(answer.message, param=answer.param or None)
        return answer.lark if answer else ""

    async def _answer(self, order: CheckSchemas) -> SchemasChecked | OrderRefused:
        if order in self._known:
            self._known.move_to_end(order)
            return self._known[order]
        try:
            async with self._pool.slot(), self._pool.process(order) as process:
                answer: SchemasChecked | OrderRefused = await process.answer(SchemasChecked, OrderRefused)
        except ConfinedGone as gone:
            message = "The schemas or the grammar of this request take too much processor time: make them simpler."
            raise InvalidRequest(message, param="tools" if order.tools else OUTPUT) from gone
        if len(order.output) + sum(len(schema) for schema, _ in order.tools) <= REMEMBERED_BYTES:
            self._known[order] = answer
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return answer


def order_of(request: ChatRequest) -> CheckSchemas | None:
    """Returns the order for a request's schemas and grammar; None if it has none that sampling follows."""
    tools = request.tools
    kind, output = _output_of(request.output)
    constrained = request.output.kind != "text" or request.tool_choice.mode == "required"
    if not output and not (tools and constrained) and not any(tool.strict is not False for tool in tools):
        return None
    return CheckSchemas(
        output=output,
        kind=kind,
        tools=tuple((_json(tool.parameters), tool.strict) for tool in tools),
        constrained=constrained,
    )


def settled(request: ChatRequest, answer: SchemasChecked) -> ChatRequest:
    """Returns the request with the answer to its order."""
    strict = zip(request.tools, answer.strict, strict=True)
    schemas = zip(request.tools, answer.schemas or [""] * len(request.tools), strict=True)
    return dataclasses.replace(
        request,
        tools=tuple(dataclasses.replace(tool, strict=each) for tool, each in strict),
        tool_schemas={tool.name: json.loads(schema) for tool, schema in schemas if schema},
        answer_lark=answer.lark,
    )


def _output_of(output: OutputFormat) -> tuple[str, str]:
    """Returns the kind and the text of an answer's format; the text is empty if there is nothing to check."""
    if output.kind in ("text", "json_object", "json_schema"):
        return "json_schema", _json(output.schema)
    return output.kind, json.dumps(output.choices) if output.kind == "choice" else output.source


def _json(schema: dict[str, Any] | None) -> str:
    return "" if schema is None else json.dumps(schema)
