"""Schemas that become grammars, and answers in every dialect of tool calls and thoughts."""

from __future__ import annotations

import json
import random
import zlib
from typing import Any

from services.errors import AllmError
from services.text.caller_grammar import answer_lark
from services.text.chat import grammar_of
from services.text.conversation import (
    CallArguments,
    CallEnded,
    CallStarted,
    ChatRequest,
    Message,
    OutputFormat,
    ParsedEvent,
    Tool,
)
from services.text.engine.sampling import SamplingParams
from services.text.parsers import dialect as dialects
from services.text.parsers.tool_grammar import ToolShape
from services.text.schema import check_schema, check_size
from tests.fuzz.built_schema import built_schema
from tests.fuzz.fuzz_target import FuzzTarget
from tests.text.checked_request import checked_request

DIALECTS = (
    *(dialects.HARMONY, dialects.MISTRAL, dialects.MISTRAL_LIST, dialects.NEMOTRON, dialects.GLM, dialects.QWEN_XML),
    *(dialects.HERMES, dialects.LLAMA3, dialects.PLAIN),
)
SHAPES = (
    ToolShape(
        "get_weather", {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    ),
    ToolShape("now", None),
)
SCHEMA_WORDS = tuple(
    f'"{word}"'.encode()
    for word in (
        *("type", "object", "array", "string", "number", "integer", "null", "properties", "required", "items", "$ref"),
        *("#", "#/$defs/a", "$defs", "anyOf", "oneOf", "allOf", "not", "enum", "const", "pattern", "format", "date"),
        *(
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minimum",
            "multipleOf",
            "patternProperties",
            "uniqueItems",
        ),
        *("additionalProperties", "prefixItems", "propertyNames", "if", "then", "else", "(a{1000}){1000}", "^(a|b)*$"),
    )
)
GRAMMAR_WORDS = tuple(
    word.encode()
    for word in (
        *(
            "root ::= ",
            "start: ",
            "%json {}",
            "%llguidance {}",
            "[a-z]",
            "[^\\n]",
            '"a"',
            "{2,5}",
            "{0,9999}",
            "\\x{41}",
            "(",
            ")",
        ),
        *(
            "|",
            "*",
            "+",
            "?",
            "\n",
            "/",
            "\\u00e9",
            "@a",
            "<|im_end|>",
            "[lazy]",
            "(?i)",
            "(?s:.*)",
            "& ~",
            "#",
            "root",
        ),
    )
)
ANSWER_WORDS = (
    *(
        b"<think>",
        b"</think>",
        b"[THINK]",
        b"[/THINK]",
        b"<tool_call>",
        b"</tool_call>",
        b"<|channel|>",
        b"<|message|>",
    ),
    *(b"<|end|>", b"<|call|>", b"<|start|>assistant", b"analysis", b"commentary to=functions.get_weather", b"final"),
    *(b"[TOOL_CALLS]", b"[ARGS]", b"<TOOLCALL>[", b"]</TOOLCALL>", b"<function=get_weather>", b"</function>", b"; "),
    *(
        b"<parameter=city>",
        b"</parameter>",
        b"<arg_key>",
        b"</arg_key>",
        b"<arg_value>",
        b"</arg_value>",
        b"get_weather",
    ),
    *(b'{"name": "get_weather", "arguments": {"city": "x"}}', b'{"name": "now", "parameters": {}}', b"\\u00e9", b"{}"),
)


def _schema(case: bytes) -> None:
    """Reads the case as a JSON Schema, as a response format and as a tool's parameters, strict or not."""
    try:
        schema = json.loads(case, parse_constant=_refused)
    except (ValueError, RecursionError):
        return
    if isinstance(schema, dict):
        _try(schema)


def _built(case: bytes) -> None:
    """Reads the case as a sequence of choices."""
    _try(built_schema(case))


def _try(schema: dict[str, Any]) -> None:
    try:
        check_size(schema, "schema")
    except AllmError:
        return
    for strict in (True, False):
        try:
            if strict:
                check_schema(schema, "schema")
        except AllmError:
            continue
        tool = Tool(name="tool", parameters=schema, strict=strict)
        for dialect in (dialects.HERMES, dialects.QWEN_XML):
            request = ChatRequest(
                model="m",
                messages=(Message(role="user", content="x"),),
                sampling=SamplingParams(),
                tools=(tool,),
                output=OutputFormat(kind="json_schema", schema=schema if strict else {"type": "object"}),
            )
            grammar_of(checked_request(request), dialect, reasoning_open=False)


def _refused(constant: str) -> object:
    raise ValueError(constant)


def _grammar(case: bytes) -> None:
    """Parses the kind of a caller's grammar and its text."""
    if case:
        kind = ("regex", "lark", "gbnf")[case[0] % 3]
        assert "start:" in answer_lark(kind, case[1:].decode(errors="replace"), "grammar")


def _answer(case: bytes) -> None:
    """Parses an option byte and an answer: in every dialect, each way to cut the answer gives the same events."""
    if not case:
        return
    text, bits = case[1:].decode(errors="replace"), case[0]
    chance = random.Random(zlib.crc32(case))  # noqa: S311 (the same cuts each time)
    cuts = sorted(chance.choices(range(len(text) + 1), k=5))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    is_open, cut, tools, bare = bool(bits & 1), bool(bits & 2), () if bits & 4 else SHAPES, bool(bits & 8)
    for dialect in DIALECTS:
        reported = [
            _told(dialect.parser(tools, reasoning_open=is_open, bare=bare), way, cut=cut)
            for way in ([text], list(text), pieces)
        ]
        assert reported[0] == reported[1] == reported[2], f"{dialect.name}: cutting matters"


def _told(parser: object, pieces: list[str], *, cut: bool) -> list[tuple[str, object, str]]:
    events: list[ParsedEvent] = [event for piece in pieces for event in parser.push(piece)] + parser.finish(cut=cut)  # type: ignore[attr-defined]
    _check_order(events)
    merged: list[tuple[str, object, str]] = []
    for event in events:
        kind, index, text = type(event).__name__, getattr(event, "index", None), getattr(event, "text", "")
        if isinstance(event, CallStarted):
            text = event.name
        if merged and text and merged[-1][:2] == (kind, index) and kind != "CallStarted":
            merged[-1] = (kind, index, merged[-1][2] + text)
        else:
            merged.append((kind, index, text))
    return merged


def _check_order(events: list[ParsedEvent]) -> None:
    """Checks that calls are numbered from 0, start once, end once, and have arguments only in between."""
    open_, begun = None, 0
    for event in events:
        assert getattr(event, "text", "x"), "no text is empty"
        if isinstance(event, CallStarted):
            assert open_ is None
            assert event.index == begun
            open_, begun = event.index, begun + 1
        elif isinstance(event, CallArguments):
            assert event.index == open_
        elif isinstance(event, CallEnded):
            assert event.index == open_
            open_ = None
    assert open_ is None, "a call that began has ended"


LANGUAGE_TARGETS = (
    FuzzTarget("schema", _schema, words=SCHEMA_WORDS, longest=8192, cases=500),
    FuzzTarget("built-schema", _built, longest=512, cases=500),
    FuzzTarget("grammar", _grammar, words=GRAMMAR_WORDS, longest=2048, cases=500),
    FuzzTarget("answer", _answer, words=ANSWER_WORDS, longest=4096, cases=100),
)
