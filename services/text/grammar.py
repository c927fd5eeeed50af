"""Builds the grammar that constrains an answer from the request's schemas; the worker applies it during sampling.

Grammars use llguidance's Lark dialect with embedded JSON Schema. The schemas were compiled once, by `SchemaChecker`:
errors name the unsupported keyword, and the worker receives only grammars that compile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from llguidance import LLMatcher

from services.text.conversation import ChatRequest, Tool
from services.text.parsers.dialect import HARMONY, Dialect
from services.text.parsers.tool_grammar import ToolShape
from services.text.schema import fit

# Harmony uses channels to separate reasoning from the answer.
_FINAL_CHANNEL = (
    r'(<|channel|> "analysis" <|message|> /(.|\n)*/ <|end|> <|start|> "assistant")? <|channel|> "final" <|message|>'
)
# Allows indented JSON, but bounds white space, so that the model cannot write it endlessly.
_SPACES = {"whitespace_pattern": r"\n?[ ]{0,16}"}
# A complete reasoning block before the answer, if the prompt has already opened it.
_THOUGHT = r"thought[lazy]: /(.|\n)*<\/think>\s*/"


def grammar_of(request: ChatRequest, dialect: Dialect, *, reasoning_open: bool) -> str:
    """Returns the grammar of the answer to a request whose schemas are checked; empty if it is unconstrained."""
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
    alternatives = " | ".join(name for name, rule in (("answer", answer), ("calls", calls)) if rule)
    start = f"start: {alternatives}"
    if reasoning_open:
        start = f"start: thought ({alternatives})\n{_THOUGHT}"
    return str(LLMatcher.grammar_from_lark("\n".join([start, *rules])))


def _answer(request: ChatRequest, dialect: Dialect) -> str:
    """Returns the rule for the answer's text; empty if it is unconstrained."""
    output = request.output
    if output.kind == "text":
        return ""
    text = f"%json {json.dumps({**fit(output.schema or {'type': 'object'}), 'x-guidance': _SPACES})}"
    return f"{_FINAL_CHANNEL} {text}" if dialect.name == HARMONY.name else text


def _calls(request: ChatRequest, dialect: Dialect, tools: Sequence[Tool], *, required: bool) -> str:
    """Returns the dialect's rules for calls; empty if calls are unconstrained, or if there are no tools."""
    if not tools or not (required or request.output.kind != "text" or any(tool.strict for tool in tools)):
        return ""
    shapes = [ToolShape(tool.name, (request.tool_schemas or {}).get(tool.name)) for tool in tools]
    # With a constrained answer, the output is either that answer or only calls; otherwise text may surround calls.
    whole = required or request.output.kind != "text"
    # A tool choice with one name asks for exactly one call.
    parallel = request.parallel_tool_calls and not (required and len(request.tool_choice.names) == 1)
    return dialect.call_grammar(shapes, required=whole, parallel=parallel)


def _renamed(grammar: str) -> str:
    return re.sub(r"^start:", "calls:", grammar, count=1, flags=re.MULTILINE)
