"""Describes tools in the system message, in the most common format, for chat templates without tools.

The format is that of the Hermes models: tools as JSON lines, calls as JSON between `<tool_call>` tags, results between
`<tool_response>` tags in a user message.
"""

from __future__ import annotations

import json
from dataclasses import replace

from services.text.conversation import Message, Tool, ToolCall

_INTRODUCTION = """You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def with_tools(messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> tuple[Message, ...]:
    """Returns the conversation with tools, calls and results as text."""
    rewritten = tuple(_spelled_out(message) for message in messages)
    if not tools:
        return rewritten
    introduction = _INTRODUCTION.format(tools="\n".join(map(_tool_line, tools)))
    if rewritten and rewritten[0].role in ("system", "developer"):
        first = replace(rewritten[0], content=f"{rewritten[0].content}\n\n{introduction}")
        return (first, *rewritten[1:])
    return (Message(role="system", content=introduction), *rewritten)


def _spelled_out(message: Message) -> Message:
    if message.role == "tool":
        return Message(role="user", content=f"<tool_response>\n{message.content}\n</tool_response>")
    if message.tool_calls:
        calls = "\n".join(map(_call_text, message.tool_calls))
        return replace(message, content=f"{message.content}\n{calls}".strip(), tool_calls=())
    return message


def _tool_line(tool: Tool) -> str:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters or {}}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def _call_text(call: ToolCall) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments or "{}"}}}\n</tool_call>'
