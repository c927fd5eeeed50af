"""Tools written into the conversation, for models whose template does not support tools."""

from __future__ import annotations

import json
from dataclasses import replace

from llguidance import LLMatcher

from services.text.chat import grammar_of, with_tools, with_users_pictures
from services.text.conversation import ChatRequest, Message, OutputFormat, Picture, Tool, ToolCall, ToolChoice
from services.text.engine.sampling import SamplingParams
from services.text.parsers.dialect import choose
from tests.case import case
from tests.text.checked_request import checked_request

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


def test_pictures_of_results_move_to_the_user() -> None:
    first, second, third = (Picture(at=at, param=f"{at}") for at in (1, 2, 3))
    calls = Message(role="assistant", content="", tool_calls=(ToolCall(id="c", name="f", arguments=""),))
    results = [Message(role="tool", content="ab", tool_call_id="c", pictures=(one,)) for one in (first, second)]
    plain = [replace(one, pictures=()) for one in results]
    moved = (replace(first, at=0), replace(second, at=0))
    asked = Message(role="user", content="abc", pictures=(third,))
    for after, expected in (
        ((asked,), (replace(asked, pictures=(*moved, third)),)),
        ((), (Message(role="user", content="", pictures=moved),)),
        ((calls, asked), (Message(role="user", content="", pictures=moved), calls, asked)),
    ):
        with case(after=after):
            assert with_users_pictures((USER, calls, *results, *after)) == (USER, calls, *plain, *expected)


HERMES = choose("", "llama")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMA = OutputFormat(kind="json_schema", schema=CITY)


def grammar(*, reasoning_open: bool = False, **parameters) -> str:
    messages = (Message(role="user", content="x"),)
    request = ChatRequest(model="m", messages=messages, sampling=SamplingParams(), **parameters)
    text = grammar_of(checked_request(request), HERMES, reasoning_open=reasoning_open)
    if text:
        assert LLMatcher.validate_grammar(text) == ""
    return text


def test_empty_request_costs_nothing() -> None:
    assert grammar() == ""
    assert grammar(tools=(Tool(name="f", parameters=CITY),)) == ""
    strict = (Tool(name="f", parameters=CITY, strict=True),)
    assert grammar(tools=strict, tool_choice=ToolChoice(mode="none")) == ""


def test_every_combination_makes_a_grammar_that_compiles() -> None:
    for reasoning_open in [False, True]:
        for parameters in [
            {"output": OutputFormat(kind="json_object")},
            {"output": SCHEMA},
            {"tools": (Tool(name="f", parameters=CITY),), "tool_choice": ToolChoice(mode="required")},
            {"tools": (Tool(name="f"),), "tool_choice": ToolChoice(mode="required")},
            {"tools": (Tool(name="f", parameters=CITY, strict=True),)},
            {"tools": (Tool(name="f", parameters=CITY),), "output": SCHEMA},
            {
                "tools": (Tool(name="f"), Tool(name="g")),
                "tool_choice": ToolChoice(names=frozenset({"g"})),
                "output": SCHEMA,
            },
            {"tools": (Tool(name="f", parameters={"not": {}}),), "tool_choice": ToolChoice(mode="required")},
        ]:
            with case(reasoning_open=reasoning_open, parameters=parameters):
                text = grammar(reasoning_open=reasoning_open, **parameters)
                assert text
                assert ("thought" in text) is reasoning_open


def test_harmony_answers_in_its_final_channel() -> None:
    request = ChatRequest(
        model="m", messages=(Message(role="user", content="x"),), sampling=SamplingParams(), output=SCHEMA
    )
    text = grammar_of(checked_request(request), choose("", "gpt-oss"), reasoning_open=False)
    assert LLMatcher.validate_grammar(text) == ""
    assert "final" in text
    assert "final" not in grammar(output=SCHEMA)


def test_a_call_that_must_be_made_leaves_no_room_for_an_answer() -> None:
    tools = (Tool(name="f", parameters=CITY),)
    text = grammar(tools=tools, tool_choice=ToolChoice(mode="required"), output=SCHEMA)
    assert "answer:" not in text
    assert "calls:" in text


def test_only_what_may_be_called_is_in_it() -> None:
    tools = (Tool(name="first", parameters=CITY), Tool(name="second", parameters=CITY))
    text = grammar(tools=tools, tool_choice=ToolChoice(mode="required", names=frozenset({"second"})))
    assert "second" in text
    assert "first" not in text
