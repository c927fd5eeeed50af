"""What constrains an answer: a grammar made from the request's schemas, which the worker applies to sampling itself.

Grammars are llguidance's: Lark with JSON Schema inside. Schemas are compiled here once before the request is queued, so
that what cannot be honoured is refused by its keyword, and the worker is only ever given what compiles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher

from services.rpc.errors import InvalidRequest
from services.text.conversation import ChatRequest, Tool
from services.text.parsers.dialect import HARMONY, Dialect, ToolShape

MAX_SCHEMA_BYTES = 256 * 1024
# Harmony says what is thought, and what is the answer, by channels.
_FINAL_CHANNEL = (
    r'(<|channel|> "analysis" <|message|> /(.|\n)*/ <|end|> <|start|> "assistant")? <|channel|> "final" <|message|>'
)
# Room to lay JSON out, but not to go on laying it out for ever.
_SPACES = {"whitespace_pattern": r"\n?[ ]{0,16}"}
# A whole thought in front of the answer, where the prompt has already opened it.
_THOUGHT = r"thought[lazy]: /(.|\n)*<\/think>\s*/"


def grammar_of(request: ChatRequest, dialect: Dialect, *, reasoning_open: bool) -> str:
    """The grammar of a request's answer; empty when it is free.

    Raises:
        InvalidRequest: a schema is not valid, or uses what is not supported; the message names the keyword.
    """
    tools = request.callable_tools
    required = bool(tools) and request.tool_choice.mode == "required"
    answer = _answer(request, dialect) if not required else ""
    calls = _calls(request, dialect, tools, required=required)
    if not answer and not calls:
        return ""
    rules = []
    if answer:
        rules.append(f"answer: {answer}")
    if calls:
        rules.append(_renamed(calls))
    alternatives = " | ".join(name for name, there in (("answer", answer), ("calls", calls)) if there)
    start = f"start: {alternatives}"
    if reasoning_open:
        start = f"start: thought ({alternatives})\n{_THOUGHT}"
    return str(LLMatcher.grammar_from_lark("\n".join([start, *rules])))


def check_size(schema: dict[str, Any], param: str) -> None:
    """Raises InvalidRequest when a schema is larger than is compiled here."""
    size = len(json.dumps(schema))
    if size > MAX_SCHEMA_BYTES:
        raise InvalidRequest(f"'{param}' has {size} bytes; {MAX_SCHEMA_BYTES} are allowed.", param=param)


def check_schema(schema: dict[str, Any], param: str) -> None:
    """Raises InvalidRequest unless sampling can be constrained by the schema; the message names the keyword."""
    if problem := _problem(schema):
        raise InvalidRequest(f"'{param}' cannot be used: {problem}", param=param)


def _problem(schema: dict[str, Any]) -> str:
    """The compiler's own words, on one line; empty when it compiles."""
    problem = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    return " ".join(problem.split())[:300]


def _answer(request: ChatRequest, dialect: Dialect) -> str:
    """The rule for the answer's text; empty when it is free."""
    output = request.output
    if output.kind == "text":
        return ""
    text = f"%json {json.dumps({**(output.schema or {'type': 'object'}), 'x-guidance': _SPACES})}"
    return f"{_FINAL_CHANNEL} {text}" if dialect.name == HARMONY.name else text


def _calls(request: ChatRequest, dialect: Dialect, tools: Sequence[Tool], *, required: bool) -> str:
    """The dialect's rules for calls; empty when calls are free, or there are none."""
    if not tools or not (required or request.output.kind != "text" or any(tool.strict for tool in tools)):
        return ""
    shapes = [ToolShape(tool.name, _usable(tool)) for tool in tools]
    # Beside a constrained answer a call must be a whole one; else text may stand around it.
    whole = required or request.output.kind != "text"
    # Who names one tool wants one call of it.
    parallel = request.parallel_tool_calls and not (required and len(request.tool_choice.names) == 1)
    return dialect.call_grammar(shapes, required=whole, parallel=parallel)


def _renamed(grammar: str) -> str:
    return re.sub(r"^start:", "calls:", grammar, count=1, flags=re.MULTILINE)


def _usable(tool: Tool) -> dict[str, Any] | None:
    """The schema of a tool's arguments. One that cannot be followed asks for an object, unless strict."""
    if tool.parameters is None or (not tool.strict and _problem(tool.parameters)):
        return {"type": "object"} if tool.parameters else None
    return tool.parameters
