"""Checks that tools, calls and results reach the prompt, and that calls are parsed from the answer."""

from __future__ import annotations

import json
from typing import Any

from allm.text.v1 import chat_pb2

from services.cli.models.connection import Refused
from services.cli.verify.check import Check, Failed, Skipped
from services.cli.verify.shape import fault
from services.cli.verify.subject import ASSISTANT, TOOL, Asked, Subject, said

TOKENS = 256
NAME = "get_weather"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
QUESTION = said("How is the weather in Paris in the next 3 days?")
LONG = "in degrees, with wind, rain and sun, for every hour of the day and the night"


def _run(subject: Subject) -> str:
    try:
        told = subject.count(_asked(_tool("The weather")))
    except Refused as refused:
        if "cannot be told of tools" in str(refused):
            raise Skipped(str(refused)) from refused
        raise Failed(str(refused), "the chat template fails where there are tools") from refused
    plain = subject.count(Asked(messages=[QUESTION], max_tokens=1))
    longer = subject.count(_asked(_tool(f"The weather {LONG}")))
    if not plain < told < longer:
        raise Failed(
            f"the prompt has {plain} tokens without a tool, {told} with one, and {longer} with a longer description",
            "the chat template does not show tools, or not all of them",
        )
    _history(subject)
    return _call(subject)


CHECK = Check(
    name="tool-call",
    compared="a call that is demanded with the tool's JSON Schema; and how many tokens prompts have with and without a "
    "tool, a call and its result, which must all count",
    run=_run,
)


def _tool(description: str) -> chat_pb2.Tool:
    return chat_pb2.Tool(name=NAME, description=description, parameters_json=json.dumps(SCHEMA), strict=True)


def _asked(tool: chat_pb2.Tool) -> Asked:
    return Asked(messages=[QUESTION], max_tokens=1, tools=[tool])


def _history(subject: Subject) -> None:
    """Raises Failed if past calls or their results are not shown to the model."""

    def count(days: str, result: str) -> int:
        call = chat_pb2.ToolCall(id="call_000000001", name=NAME, arguments_json=f'{{"city": "Paris", "days": {days}}}')
        answered = said(result, TOOL)
        answered.tool_call_id = call.id
        messages = [QUESTION, chat_pb2.ChatMessage(role=ASSISTANT, tool_calls=[call]), answered]
        return subject.count(Asked(messages=messages, max_tokens=1, tools=[_tool("The weather")]))

    try:
        base, called, resulted = count("3", "sunny"), count("123456789012345", "sunny"), count("3", f"sunny {LONG}")
    except Refused as refused:
        raise Failed(str(refused), "the chat template fails on calls of tools and their results") from refused
    lost = [what for what, tokens in (("arguments", called), ("results", resulted)) if tokens <= base]
    if lost:
        raise Failed(
            f"the prompt stays at {base} tokens whatever the {' and the '.join(lost)} of a call are",
            "the chat template does not show calls of tools or their results",
        )


def _call(subject: Subject) -> str:
    answer = subject.ask(Asked(messages=[QUESTION], max_tokens=TOKENS, tools=[_tool("The weather")], required=True))
    if subject.random and answer.finish == chat_pb2.FINISH_REASON_LENGTH:
        return f"prompts show tools, calls and results; random weights thought for {TOKENS} tokens before a call"
    if answer.finish != chat_pb2.FINISH_REASON_TOOL_CALLS or not answer.calls:
        raise Failed(
            f"no call came within {TOKENS} tokens, but {answer.text[:80]!r}",
            "the model's marks for calls are not those that its chat template suggests",
        )
    name, arguments = answer.calls[0]
    if wrong := f"it calls {name!r}" if name != NAME else fault(arguments, SCHEMA):
        raise Failed(wrong, "the grammar of calls does not fit the model's vocabulary")
    return f"{name}({arguments})"
