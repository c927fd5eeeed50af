"""Checks of tools and of JSON Schemas: prompts show tools, calls and results; answers and calls follow their schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from allm.text.v1 import chat_pb2

from services.cli.models.connection import CallRefused
from services.cli.verify.check import Check, CheckFailed, Skipped
from services.cli.verify.subject import ASSISTANT, TOOL, Request, Subject, message

TOKENS = 256
FREE_TOKENS = 64  # of an answer that may be a call
ANIMAL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "animal": {"type": "string", "enum": ["cat", "dog", "bee"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 8},
        "eats": {
            "type": "array",
            "items": {"type": "string", "enum": ["fish", "meat", "grass"]},
            "minItems": 1,
            "maxItems": 3,
        },
    },
    "required": ["animal", "legs", "eats"],
    "additionalProperties": False,
}


def fault(text: str, schema: Mapping[str, Any]) -> str:
    """Describes the first error of a JSON text; empty if it is valid."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"{text[:80]!r} is not JSON: {error}"
    return _fault(value, schema, "the value")


def _fault(value: Any, schema: Mapping[str, Any], where: str) -> str:
    if "enum" in schema:
        return "" if value in schema["enum"] else f"{where} is {value!r}, none of {schema['enum']}"
    if schema["type"] == "integer":
        fits = type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        return "" if fits else f"{where} is {value!r}, not an integer from {schema['minimum']} to {schema['maximum']}"
    if schema["type"] == "array":
        if not isinstance(value, list) or not schema["minItems"] <= len(value) <= schema["maxItems"]:
            return f"{where} is not a list of {schema['minItems']} to {schema['maxItems']}"
        return next(filter(None, (_fault(each, schema["items"], f"an item of {where}") for each in value)), "")
    if not isinstance(value, dict) or value.keys() != schema["properties"].keys():
        return f"{where} is not an object with {', '.join(schema['properties'])} and nothing else"
    return next(filter(None, (_fault(value[name], part, name) for name, part in schema["properties"].items())), "")


def _follow_schema(subject: Subject) -> str:
    answer = subject.ask(Request(messages=[message("Describe a cat as JSON.")], max_tokens=TOKENS, schema=ANIMAL))
    if subject.random and answer.finish == chat_pb2.FINISH_REASON_LENGTH and not answer.text:
        return f"random weights reasoned for {TOKENS} tokens before an answer"
    if answer.finish != chat_pb2.FINISH_REASON_STOP:
        raise CheckFailed(f"the answer did not end within {TOKENS} tokens", "the grammar cannot end in this vocabulary")
    if wrong := fault(answer.text, ANIMAL):
        raise CheckFailed(wrong, "the bytes of the tokens differ from the tokenizer's")
    return answer.text


SCHEMA_CHECK = Check(name="json-schema", compared="an answer and the JSON Schema of its request", run=_follow_schema)


NAME = "get_weather"
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
QUESTION = message("How is the weather in Paris in the next 3 days?")
LONG = "in degrees, with wind, rain and sun, for every hour of the day and the night"


def _show_and_call(subject: Subject) -> str:
    try:
        with_tool = subject.count(_request(_tool("The weather")))
    except CallRefused as refused:
        if "does not support tools" in str(refused):
            raise Skipped(str(refused)) from refused
        raise CheckFailed(str(refused), "the chat template fails on tools") from refused
    plain = subject.count(Request(messages=[QUESTION], max_tokens=1))
    longer = subject.count(_request(_tool(f"The weather {LONG}")))
    if not plain < with_tool < longer:
        raise CheckFailed(
            f"a prompt has {plain} tokens without a tool, {with_tool} with one, {longer} with a longer description",
            "the chat template does not show tools, or not all of them",
        )
    _history(subject)
    return f"required: {_call(subject)}; auto: {_free_call(subject)}"


TOOL_CHECK = Check(
    name="tool-call",
    compared="a required call and the tool's JSON Schema; and the lengths of prompts: a tool, a call and its result "
    "must each add tokens. What the model does under `auto` is only reported",
    run=_show_and_call,
)


def _tool(description: str) -> chat_pb2.Tool:
    return chat_pb2.Tool(name=NAME, description=description, parameters_json=json.dumps(WEATHER), strict=True)


def _request(tool: chat_pb2.Tool) -> Request:
    return Request(messages=[QUESTION], max_tokens=1, tools=[tool])


def _history(subject: Subject) -> None:
    """Raises CheckFailed if past calls or their results are not shown to the model."""

    def count(days: str, result: str) -> int:
        call = chat_pb2.ToolCall(id="call_000000001", name=NAME, arguments_json=f'{{"city": "Paris", "days": {days}}}')
        answered = message(result, TOOL)
        answered.tool_call_id = call.id
        messages = [QUESTION, chat_pb2.ChatMessage(role=ASSISTANT, tool_calls=[call]), answered]
        return subject.count(Request(messages=messages, max_tokens=1, tools=[_tool("The weather")]))

    try:
        base, called, resulted = count("3", "sunny"), count("123456789012345", "sunny"), count("3", f"sunny {LONG}")
    except CallRefused as refused:
        raise CheckFailed(str(refused), "the chat template fails on calls of tools and their results") from refused
    lost = [what for what, tokens in (("arguments", called), ("results", resulted)) if tokens <= base]
    if lost:
        raise CheckFailed(
            f"the prompt has {base} tokens for any {' and any '.join(lost)} of a call",
            "the chat template does not show calls of tools or their results",
        )


def _free_call(subject: Subject) -> str:
    """Describes the answer of a model that is free to call."""
    if subject.random:
        return "not meaningful on random weights"
    tool = _tool("The weather")
    tool.strict = False
    answer = subject.ask(Request(messages=[QUESTION], max_tokens=FREE_TOKENS, tools=[tool]))
    if answer.calls:
        name, arguments = answer.calls[0]
        wrong = fault(arguments, WEATHER)
        return f"{name}({arguments}){f', which breaks the schema: {wrong}' if wrong else ''}"
    found = "a call that is text, because words surround it or it breaks the schema" if unread(answer.text) else "words"
    return f"{found}: {answer.text[:80]!r}"


def unread(text: str) -> bool:
    """Reports whether a text has a call of the tool in some markup: two names of it between braces or tags."""
    return bool(re.search(rf"[{{<\[][^\n]*{NAME}[\s\S]*\bcity\b[\s\S]*[}}>\]]", text))


def _call(subject: Subject) -> str:
    answer = subject.ask(Request(messages=[QUESTION], max_tokens=TOKENS, tools=[_tool("The weather")], required=True))
    if subject.random and answer.finish == chat_pb2.FINISH_REASON_LENGTH:
        return f"random weights reasoned for {TOKENS} tokens before a call"
    if answer.finish != chat_pb2.FINISH_REASON_TOOL_CALLS or not answer.calls:
        raise CheckFailed(
            f"no call within {TOKENS} tokens; the answer is {answer.text[:80]!r}",
            "the model's markup of calls differs from its chat template's",
        )
    name, arguments = answer.calls[0]
    if wrong := f"it calls {name!r}" if name != NAME else fault(arguments, WEATHER):
        raise CheckFailed(wrong, "the grammar of calls does not fit the model's vocabulary")
    return f"{name}({arguments})"
