"""Tools written into the conversation, for models whose template does not support tools."""

from __future__ import annotations

import json

from services.text.chat import with_tools
from services.text.conversation import Message, Tool, ToolCall

TOOL = Tool(name="f", description="does it", parameters={"type": "object", "properties": {"z": {}, "a": {}}})
USER = Message(role="user", content="go")


def test_without_tools_and_calls_nothing_changes() -> None:
    assert with_tools((USER,), ()) == (USER,)


def test_tools_are_described_in_front() -> None:
    system, user = with_tools((USER,), (TOOL,))
    assert user == USER
    assert system.role == "system"
    (line,) = [line for line in system.content.splitlines() if line.startswith('{"type"')]
    assert json.loads(line)["function"]["name"] == "f"
    assert line.index('"z"') < line.index('"a"')


def test_instructions_stay_in_front_of_tools() -> None:
    first, _ = with_tools((Message(role="developer", content="Be brief."), USER), (TOOL,))
    assert first.role == "developer"
    assert first.content.startswith("Be brief.\n\n")
    assert '"name": "f"' in first.content


def test_calls_and_results_become_text() -> None:
    call = ToolCall(id="c", name="f", arguments='{"a": 1}')
    _, said, result = with_tools(
        (
            USER,
            Message(role="assistant", content="Let me see.", tool_calls=(call,)),
            Message(role="tool", content="42", tool_call_id="c"),
        ),
        (),
    )
    assert said == Message(
        role="assistant", content='Let me see.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    )
    assert result == Message(role="user", content="<tool_response>\n42\n</tool_response>")
