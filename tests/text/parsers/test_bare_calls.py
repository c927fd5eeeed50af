"""Calls without the marks of a dialect: recognised alike at every cut, and only if the answer is nothing else."""

from __future__ import annotations

import random

import pytest

from services.text.conversation import CallArguments, CallStarted, ParsedEvent, TextDelta
from services.text.parsers import dialect as dialects
from services.text.parsers.bare_calls import MAX_BARE
from services.text.parsers.dialect import Dialect
from services.text.parsers.tool_grammar import ToolShape
from tests.case import case
from tests.text.parsers.answers import CALLS, TOOLS, call, merged

CALLING = (
    dialects.HARMONY,
    dialects.MISTRAL,
    dialects.MISTRAL_LIST,
    dialects.NEMOTRON,
    dialects.GLM,
    dialects.QWEN_XML,
    dialects.HERMES,
    dialects.HERMES_IN_PROMPT,
    dialects.LLAMA3,
)
# In Llama 3's dialect such JSON is a call anyway, and it waits for its end.
MARKED = [one for one in CALLING if one is not dialects.LLAMA3]
every_dialect = pytest.mark.parametrize("dialect", CALLING, ids=lambda one: one.name)
every_marked_dialect = pytest.mark.parametrize("dialect", MARKED, ids=lambda one: one.name)
PARIS = '{"city": "é\\"}"}'
BARE = f'{{"name": "get_weather", "arguments": {PARIS}}}'
ONE, TWO = call(0, "get_weather", PARIS), call(1, "now", "{}")
CALLED = (
    (BARE, ONE),
    (f"\n {BARE}\n\n", ONE),
    (f"```json\n{BARE}\n```\n", ONE),
    (f"```\n{BARE}```", ONE),
    (f"[{BARE}, {{'name': 'now'}}]".replace("'", '"'), ONE + TWO),
    (f'```json\n[\n{BARE},\n{{"type": "function", "name": "now", "arguments": null}}]\n```', ONE + TWO),
    (f'{{"parameters": {PARIS}, "id": 7, "name": "get_weather"}}', ONE),
    ('{"name": "now", "arguments": "{}"}', call(0, "now", "{}")),
    (
        '{"name":"get_weather","arguments":{"city":"","tags":["\\u00e9", "}"]}}',
        call(0, "get_weather", '{"city":"","tags":["\\u00e9", "}"]}'),
    ),
)
# Text to the last letter: with prose around it, of another tool, against its schema, or no JSON.
SAID = (
    f"Sure: {BARE}",
    f"{BARE} Done.",
    f"{BARE}\n{BARE}",
    f"```json\n{BARE}\n``` is it",
    f"```json\n{BARE}",
    f"```python\n{BARE}\n```",
    f"[{BARE}",
    f"[{BARE},]",
    "[]",
    "{}",
    "```json\n```",
    '{"name": "get_weathers", "arguments": {}}',
    '{"name": "get_weather"}',
    '{"name": "get_weather", "arguments": {"days": 3}}',
    '{"name": "get_weather", "arguments": {"city": 3}}',
    '{"name": "get_weather", "arguments": {"city": "a", "unit": "feet"}}',
    '{"name": "get_weather", "arguments": {"city": "a", "more": 1}}',
    '{"name": "now", "arguments": {"zone": 1}}',
    '{"name": "now", "arguments": [1]}',
    '{"name": "now", "arguments": {"a" 1}}',
    '{"name": "now", "name": "now"}',
    '{"name": "now", "result": 1}',
    '{"name": "now", "arguments": {}},',
    '{"city": "Paris"}',
    '{"name": "now", "arguments": nul}',
    '{"name": "now", "id": 01}',
    '{"name": "now", "id": "a\nb"}',
)


def events(dialect: Dialect, pieces: list[str], *, cut: bool = False) -> list[ParsedEvent]:
    parser = dialect.parser(TOOLS, reasoning_open=False, bare=True)
    return merged([event for piece in pieces for event in parser.push(piece)] + parser.finish(cut=cut))


def assert_at_every_cut(dialect: Dialect, text: str, expected: list[ParsedEvent]) -> None:
    assert events(dialect, list(text)) == expected
    for at in range(len(text) + 1):
        assert events(dialect, [text[:at], text[at:]]) == expected


def as_answer(dialect: Dialect, text: str) -> str:
    return f"<|channel|>final<|message|>{text}" if dialect is dialects.HARMONY else text


@every_dialect
def test_an_answer_that_is_only_calls_is_calls_at_every_cut(dialect: Dialect) -> None:
    for text, expected in CALLED:
        with case(text=text):
            assert_at_every_cut(dialect, as_answer(dialect, text), expected)


@every_dialect
def test_any_other_answer_is_what_the_dialect_alone_reads(dialect: Dialect) -> None:
    for text in SAID:
        with case(text=text):
            alone = dialect.parser(TOOLS, reasoning_open=False)
            expected = merged(alone.push(as_answer(dialect, text)) + alone.finish())
            assert dialect not in MARKED or expected == [TextDelta(text)]
            assert_at_every_cut(dialect, as_answer(dialect, text), expected)


@every_dialect
def test_made_up_answers_are_read_alike_at_every_cut(dialect: Dialect) -> None:
    chance = random.Random(dialect.name)  # noqa: S311 (a fixed seed)
    parts = ('{"name": ', '"now"', '"get_weather"', ', "arguments": ', "{}", PARIS, "}", "[", "]", ",", "```", "json\n")
    parts += ("<think>", "</think>", " ", "\n", "x", *filter(None, CALLS[dialect.name]), BARE, '{"city": "a"}')
    for _ in range(15):
        text = "".join(chance.choices(parts, k=chance.randint(1, 5)))
        with case(text=text):
            assert_at_every_cut(dialect, text, events(dialect, [text]))


@every_marked_dialect
def test_text_is_held_only_while_it_can_become_a_call(dialect: Dialect) -> None:
    for text in ('{"x', "{ Well", "[1", "```python", '{"name": "nowhere"', '{"name": "now", "arguments": {x', "Hi"):
        with case(text=text):
            parser = dialect.parser(TOOLS, reasoning_open=False, bare=True)
            assert merged(parser.push(as_answer(dialect, f"{text}: "))) == [TextDelta(f"{text}:")]
            assert parser.push("more") == [TextDelta(" more")]


@every_marked_dialect
def test_a_truncated_answer_and_a_very_long_one_are_text(dialect: Dialect) -> None:
    for text in (BARE, BARE[:-9]):
        assert events(dialect, [as_answer(dialect, text)], cut=True) == [TextDelta(text)]
    long = f'{{"name": "get_weather", "arguments": {{"city": "{"a" * MAX_BARE}"}}}}'
    for pieces in ([long], [long[:70], long[70:]]):
        assert events(dialect, [as_answer(dialect, pieces[0]), *pieces[1:]]) == [TextDelta(long)]


def test_reasoning_and_marked_calls_are_passed_on() -> None:
    first = f"<tool_call>{BARE}</tool_call>"
    assert events(dialects.HERMES, [f"<think>Hm.</think>\n{BARE}"])[1:] == ONE
    assert events(dialects.HERMES, [f"<think>Hm.</think>\n{first}"])[1:] == ONE
    found = events(dialects.HERMES, [f"{BARE}\n{first}"])
    assert found[0] == TextDelta(BARE)
    assert found[1:] == ONE


def test_no_tools_no_calls() -> None:
    parser = dialects.HERMES.parser([], reasoning_open=False, bare=True)
    assert parser.push(BARE) == [TextDelta(BARE)]
    parser = dialects.HERMES.parser([ToolShape("f", None)], reasoning_open=False, bare=True)
    found = parser.push('{"name": "f"}') + parser.finish()
    assert [type(event) for event in found][:2] == [CallStarted, CallArguments]
