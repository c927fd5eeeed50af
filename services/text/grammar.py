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

from services.text.conversation import ChatRequest, Tool
from services.text.parsers.dialect import HARMONY, Dialect, ToolShape
from services.text.schema import fit, lenient

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


def _answer(request: ChatRequest, dialect: Dialect) -> str:
    """The rule for the answer's text; empty when it is free."""
    output = request.output
    if output.kind == "text":
        return ""
    text = f"%json {json.dumps({**fit(output.schema or {'type': 'object'}), 'x-guidance': _SPACES})}"
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
    """The schema of a tool's arguments; what nobody promised to follow is followed as far as it can be."""
    if tool.parameters is None:
        return None
    return fit(tool.parameters) if tool.strict else lenient(tool.parameters)
