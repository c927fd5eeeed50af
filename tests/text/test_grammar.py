"""Grammars of requests: none without constraints, else one alternative for the answer and one for calls."""

from __future__ import annotations

from llguidance import LLMatcher

from services.text.conversation import ChatRequest, Message, OutputFormat, Tool, ToolChoice
from services.text.engine.sampling import SamplingParams
from services.text.grammar import grammar_of
from services.text.parsers.dialect import choose
from tests.case import case
from tests.text.checked_request import checked_request

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
