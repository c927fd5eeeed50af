"""Answers cut off by the token limit: markup that has begun is never text, wherever the cut is."""

from __future__ import annotations

import random

import pytest

from services.text.conversation import CallArguments, CallEnded, CallStarted, ParsedEvent, ReasoningDelta, TextDelta
from services.text.parsers import dialect as dialects
from services.text.parsers.dialect import Dialect
from services.text.parsers.tool_grammar import ToolShape
from tests.text.parsers.answers import CALLS, PARIS, TOOLS, call, merged

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
every_calling_dialect = pytest.mark.parametrize("dialect", CALLING, ids=lambda one: one.name)
every_dialect = pytest.mark.parametrize("dialect", (*CALLING, dialects.PLAIN), ids=lambda one: one.name)
MARKS = (
    "<tool_call>", "</tool_call>", "<TOOLCALL>", "</TOOLCALL>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<function=",
    "</function>", "<parameter=", "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>",
    "</think>", "[THINK]", "[/THINK]", "<|python_tag|>", "<|channel|>", "<|message|>", "<|start|>", "<|end|>",
    "<|call|>", "<|constrain|>",
)  # fmt: skip
OPENERS = {
    "harmony": ("<|channel|>", "<|start|>", "<|end|>"),
    "mistral": ("[TOOL_CALLS]",),
    "mistral-list": ("[TOOL_CALLS]",),
    "nemotron": ("<TOOLCALL>",),
    "glm": ("<tool_call>",),
    "qwen-xml": ("<tool_call>", "<function="),
    "hermes": ("<tool_call>",),
    "hermes-in-prompt": ("<tool_call>",),
    "llama3": ("<|python_tag|>",),
}
PROSE = 'Some <b>prose</b>, [a list] of <to and "x".'


def read(
    dialect: Dialect, text: str, *, cut: bool, pieces: int = 1, is_open: bool = False, tools: tuple = TOOLS
) -> list[ParsedEvent]:
    parser = dialect.parser(tools, reasoning_open=is_open)
    size = max(1, -(-len(text) // pieces))
    events = [event for at in range(0, len(text), size) for event in parser.push(text[at : at + size])]
    return merged(events + parser.finish(cut=cut))


def content(events: list[ParsedEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def reasoning(events: list[ParsedEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ReasoningDelta))


def answers(dialect: Dialect) -> list[str]:
    """Returns whole answers that contain every element of the dialect."""
    first, second = CALLS[dialect.name]
    both = second if second and second.startswith(first[:-12]) else first + (second or "")
    if dialect is dialects.HARMONY:
        thought = "<|channel|>analysis<|message|>Hm, <so>.<|end|><|start|>assistant"
        preamble = f"<|channel|>commentary<|message|>{PROSE}<|end|><|start|>assistant"
        final = f"<|channel|>final<|message|>{PROSE}<|return|>"
        return [first, thought + first, thought + preamble + first + "<|call|>", thought + final]
    opener, closer = ("[THINK]", "[/THINK]") if dialect.name.startswith("mistral") else ("<think>", "</think>")
    thought = f"{opener}\nHm, <so>.\n{closer}\n\n"
    found = [first, both, thought + both]
    if dialect is not dialects.LLAMA3:  # Llama 3 calls have no mark: after text they are text
        found += [f"{PROSE}\n\n{both}", f"{thought}{PROSE}\n{both}\n{PROSE}"]
    return found


@every_calling_dialect
def test_a_cut_emits_nothing_that_the_whole_answer_does_not_emit(dialect: Dialect) -> None:
    for text in answers(dialect):
        whole = read(dialect, text, cut=False)
        started = sum(isinstance(event, CallStarted) for event in whole)
        assert started or PROSE in content(whole)
        for end in range(len(text) + 1):
            parsed = read(dialect, text[:end], cut=True)
            said = content(parsed).rstrip()
            if not content(whole).startswith(said):
                # One character is too short to recognise a mark.
                assert content(whole).startswith(said[:-1].rstrip()), (text[:end], said)
                assert said[-1] in "<[{", (text[:end], said)
            begun = [mark[:length] for mark in OPENERS[dialect.name] for length in range(2, len(mark) + 1)]
            assert not content(parsed).endswith(tuple(begun))
            assert reasoning(whole).startswith(reasoning(parsed).removesuffix("<").removesuffix("[").rstrip())
            names = [event.name for event in parsed if isinstance(event, CallStarted)]
            assert names == [event.name for event in whole if isinstance(event, CallStarted)][: len(names)]
            assert sum(isinstance(event, CallEnded) for event in parsed) == len(names)


@every_calling_dialect
def test_chunk_boundaries_of_a_truncated_answer_do_not_matter(dialect: Dialect) -> None:
    for text in answers(dialect):
        for end in range(0, len(text) + 1, 3):
            parsed = read(dialect, text[:end], cut=True)
            assert read(dialect, text[:end], cut=True, pieces=len(text)) == parsed
            assert read(dialect, text[:end], cut=True, pieces=3) == parsed


@every_calling_dialect
def test_the_arguments_of_a_call_that_was_cut_end_with_no_mark(dialect: Dialect) -> None:
    (text, _) = CALLS[dialect.name]
    for end in range(len(text)):
        arguments = [event.text for event in read(dialect, text[:end], cut=True) if isinstance(event, CallArguments)]
        assert PARIS.startswith("".join(arguments).removesuffix("<").removesuffix("\\n").rstrip())


@every_dialect
def test_an_answer_that_ended_by_itself_keeps_what_looks_like_a_mark(dialect: Dialect) -> None:
    for mark in MARKS:
        for length in range(1, len(mark)):
            text = f"It begins with {mark[:length]}"
            assert content(read(dialect, text, cut=False)) == text


@every_dialect
def test_text_that_cannot_become_markup_stays(dialect: Dialect) -> None:
    texts = [PROSE, "3 < 4", "a[", "x <3", "to", "tomorrow", '{"title": "Bo', "1. [link](", "<b", "a <tool box> b"]
    for text in [*texts, '{"na']:
        parsed = content(read(dialect, text, cut=True))
        if dialect is dialects.LLAMA3 and text == '{"na':
            assert parsed == ""  # a call begins this way
        else:
            assert parsed == text


@every_dialect
def test_tool_marks_are_text_without_tools(dialect: Dialect) -> None:
    for text in ("See <tool_ca", "See [TOOL_CA", "See <TOOLCA", '{"name": "Bo', '<tool_call>\n{"name": "f'):
        assert content(read(dialect, text, cut=True, tools=())) == text


@every_calling_dialect
def test_an_unknown_tool_is_text_as_soon_as_it_is_one(dialect: Dialect) -> None:
    text = CALLS[dialect.name][0].replace("get_weather", "get_whether")
    end = text.index("get_whe") + len("get_whe")
    parsed = content(read(dialect, text[:end], cut=True))
    assert parsed == ("" if dialect is dialects.HARMONY else text[:end])


@every_calling_dialect
def test_a_name_that_was_cut_is_not_taken_for_a_shorter_one(dialect: Dialect) -> None:
    text = CALLS[dialect.name][0]
    end = text.index("get_weather") + len("get")
    tools = (*TOOLS, ToolShape("get", None))
    assert read(dialect, text[:end], cut=True, tools=tools) == []


@pytest.mark.parametrize("is_open", [False, True])
@every_dialect
def test_a_thought_that_was_cut_has_no_mark(dialect: Dialect, is_open: bool) -> None:
    if dialect is dialects.HARMONY:
        text, closer = "<|channel|>analysis<|message|>Hm.<|end|>", "<|end|>"
    else:
        opener, closer = ("[THINK]", "[/THINK]") if dialect.name.startswith("mistral") else ("<think>", "</think>")
        text = f"{opener}Hm.{closer}"
    for end in range(2, len(text) + 1):
        parsed = read(dialect, text[:end], cut=True, is_open=is_open)
        assert content(parsed) == ""
        if end != text.index(closer) + 1:
            assert "Hm.".startswith(reasoning(parsed)), text[:end]


FRAGMENTS = (
    *MARKS,
    "\n",
    " ",
    "x",
    "now",
    "get_weather",
    '{"name": "now"',
    ', "arguments": ',
    "{}",
    "}",
    "[",
    "<",
    "]",
)


@every_dialect
def test_no_cut_of_any_markup_raises_or_depends_on_its_pieces(dialect: Dialect) -> None:
    chance = random.Random(f"{dialect.name}-cut")  # noqa: S311 (a fixed seed)
    for _ in range(300):
        text = "".join(chance.choices(FRAGMENTS, k=chance.randint(1, 10)))
        text = text[: chance.randint(0, len(text))]
        parsed = read(dialect, text, cut=True)
        assert read(dialect, text, cut=True, pieces=len(text) or 1) == parsed
        started = [event.index for event in parsed if isinstance(event, CallStarted)]
        assert started == list(range(len(started)))
        assert [event.index for event in parsed if isinstance(event, CallEnded)] == started


def test_a_call_that_is_whole_when_the_answer_is_cut_is_emitted() -> None:
    text = CALLS["hermes"][0]
    for tail in ("", "\n<too", "\n<tool_call>", '\n<tool_call>\n{"name": "no'):
        assert read(dialects.HERMES, text + tail, cut=True) == call(0, "get_weather", PARIS)
