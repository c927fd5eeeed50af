"""Every dialect: the parser's events under any split, the grammar, and the choice of dialect by template."""

from __future__ import annotations

import json
import random

import pytest

from services.text.conversation import CallArguments, CallEnded, CallStarted, ParsedEvent, ReasoningDelta, TextDelta
from services.text.parsers import dialect as dialects
from services.text.parsers.dialect import Dialect, choose
from services.text.parsers.reader import MAX_HELD
from tests.byte_tokens import accepts
from tests.case import case
from tests.text.parsers.answers import CALLS, NOW, PARIS, TOOLS, WEATHER, call, merged, read, splits

ALL = (
    dialects.HARMONY,
    dialects.MISTRAL,
    dialects.MISTRAL_LIST,
    dialects.NEMOTRON,
    dialects.GLM,
    dialects.QWEN_XML,
    dialects.HERMES,
    dialects.HERMES_IN_PROMPT,
    dialects.LLAMA3,
    dialects.PLAIN,
)
CALLING = tuple(one for one in ALL if one is not dialects.PLAIN)
# Dialects in which marks in the text enclose every call.
MARKING = tuple(one for one in CALLING if one not in (dialects.HARMONY, dialects.LLAMA3))
every_dialect = pytest.mark.parametrize("dialect", ALL, ids=lambda one: one.name)
every_calling_dialect = pytest.mark.parametrize("dialect", CALLING, ids=lambda one: one.name)
every_marking_dialect = pytest.mark.parametrize("dialect", MARKING, ids=lambda one: one.name)
every_parallel_dialect = pytest.mark.parametrize("dialect", (*MARKING, dialects.LLAMA3), ids=lambda one: one.name)
every_thinking_dialect = pytest.mark.parametrize(
    "dialect", [one for one in ALL if one is not dialects.HARMONY], ids=lambda one: one.name
)


def one_call(dialect: Dialect) -> str:
    return CALLS[dialect.name][0]


def two_calls(dialect: Dialect) -> str:
    first, second = CALLS[dialect.name]
    assert second is not None
    return second if second.startswith(first[:-12]) else first + second


# --- parsing


@every_calling_dialect
def test_a_call_is_emitted_however_it_is_cut(dialect: Dialect) -> None:
    for pieces in splits(one_call(dialect), seed=1):
        assert read(dialect, pieces) == call(0, "get_weather", PARIS)


@every_parallel_dialect
def test_several_calls_are_numbered(dialect: Dialect) -> None:
    for pieces in splits(two_calls(dialect), seed=2):
        assert read(dialect, pieces) == call(0, "get_weather", PARIS) + call(1, "now", "{}")


@every_dialect
def test_text_is_content_to_the_letter(dialect: Dialect) -> None:
    text = ' Hi <b>there</b>,\n\n [1, {"a": 2}] <tool, <|x|> [TOOL]  \n'
    for pieces in splits(text, seed=3):
        assert read(dialect, pieces) == [TextDelta(text)]


@every_dialect
def test_text_is_emitted_as_soon_as_it_is_certain(dialect: Dialect) -> None:
    parser = dialect.parser(TOOLS, reasoning_open=False)
    assert merged(parser.push("Hello")) == [TextDelta("Hello")]
    assert merged(parser.push(" you")) == [TextDelta(" you")]


@every_marking_dialect
def test_text_in_front_of_a_call_loses_the_space_around_it(dialect: Dialect) -> None:
    for pieces in splits(f"One moment.\n\n{one_call(dialect)}\n\n Done. ", seed=4, count=10):
        assert read(dialect, pieces) == [
            TextDelta("One moment."),
            *call(0, "get_weather", PARIS),
            TextDelta("Done. "),
        ]


@every_calling_dialect
def test_a_call_of_an_unknown_tool_is_content_to_the_letter(dialect: Dialect) -> None:
    text = one_call(dialect).replace("get_weather", "get_whether")
    for pieces in splits(text, seed=5):
        assert read(dialect, pieces) == [TextDelta(text)]


@every_calling_dialect
def test_the_name_is_emitted_before_the_arguments_come(dialect: Dialect) -> None:
    text = one_call(dialect)
    parser = dialect.parser(TOOLS, reasoning_open=False)
    at = text.index("Paris")
    events = parser.push(text[:at])
    assert events[0] == CallStarted(0, "get_weather")
    assert merged(parser.push("Paris")) == [CallArguments(0, "Paris")]


@every_calling_dialect
def test_an_answer_that_breaks_off_loses_nothing_and_raises_nothing(dialect: Dialect) -> None:
    text = one_call(dialect)
    for end in range(len(text)):
        events = read(dialect, [text[:end]])
        calls = [event for event in events if not isinstance(event, TextDelta)]
        if calls:
            assert calls[0] == CallStarted(0, "get_weather")
            assert calls[-1] == CallEnded(0)
            emitted = "".join(event.text for event in calls if isinstance(event, CallArguments))
            assert PARIS.startswith(emitted) or dialect in (dialects.GLM, dialects.QWEN_XML)
        else:
            assert merged(events) == ([TextDelta(text[:end])] if end else [])


FRAGMENTS = (
    "<tool_call>", "</tool_call>", "\n", " ", '{"name": "get_weather"', ', "arguments": ', '{"city": "x"}', "}", "{",
    '"', "\\", "[", "]", ",", "<function=get_weather>", "<function=now>", "<parameter=city>", "</parameter>",
    "</function>", "x", "3", "é", "<", "get_weather", "now", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "city", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<TOOLCALL>", "</TOOLCALL>", "<think>", "</think>", "[THINK]",
    "[/THINK]", "<|python_tag|>", ";", "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "assistant",
    "analysis", "commentary", "final", " to=functions.now", "<|constrain|>json", '"parameters": ', "null", "true",
)  # fmt: skip


@every_dialect
def test_any_markup_is_read_the_same_however_it_is_cut(dialect: Dialect) -> None:
    chance = random.Random(f"{dialect.name}-fragments")  # noqa: S311 (a fixed seed)
    for _ in range(400):
        text = "".join(chance.choices(FRAGMENTS, k=chance.randint(1, 14)))
        is_open = chance.random() < 0.2
        whole = read(dialect, [text], reasoning_open=is_open)
        check_order(whole)
        assert read(dialect, list(text), reasoning_open=is_open) == whole
        for _ in range(4):
            cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randint(1, 6)))
            pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
            assert read(dialect, pieces, reasoning_open=is_open) == whole


def check_order(events: list[ParsedEvent]) -> None:
    """Checks that calls are numbered from 0 and that nothing interrupts a call."""
    open_call: int | None = None
    calls = 0
    for event in events:
        if isinstance(event, CallStarted):
            assert (open_call, event.index) == (None, calls)
            assert event.name in {tool.name for tool in TOOLS}
            open_call, calls = event.index, calls + 1
        elif isinstance(event, CallArguments):
            assert event.index == open_call
        elif isinstance(event, CallEnded):
            assert event.index == open_call
            open_call = None
        else:
            assert open_call is None
    assert open_call is None


@every_dialect
def test_held_text_is_limited(dialect: Dialect) -> None:
    """Markup that never becomes a call is emitted as text before the answer ends."""
    for opener in ("<tool_call>", "[TOOL_CALLS]", "<TOOLCALL>[", "<|python_tag|>", "<|channel|>", "<|start|>", ""):
        text = opener + '{"arguments": {"a": "' + "x" * 2 * MAX_HELD
        parser = dialect.parser(TOOLS, reasoning_open=False)
        emitted = "".join(
            event.text
            for at in range(0, len(text), 1000)
            for event in parser.push(text[at : at + 1000])
            if isinstance(event, TextDelta)
        )
        assert text.startswith(emitted)
        assert len(emitted) > MAX_HELD
        assert read(dialect, [text]) == [TextDelta(text)]


@every_dialect
def test_deep_nesting_is_no_trouble(dialect: Dialect) -> None:
    for opener in ("<tool_call>", "[TOOL_CALLS]", "<TOOLCALL>", ""):
        text = opener + '{"name": "get_weather", "arguments": ' + "[" * 100_000
        check_order(read(dialect, [text]))
    text = "<tool_call>get_weather<arg_key>tags</arg_key><arg_value>" + "[" * 100_000 + "</arg_value></tool_call>"
    check_order(read(dialect, [text]))


# --- reasoning


@every_thinking_dialect
def test_thoughts_in_front_are_reasoning(dialect: Dialect) -> None:
    opener, closer = ("[THINK]", "[/THINK]") if dialect.name.startswith("mistral") else ("<think>", "</think>")
    for is_open in (False, True):
        text = f"{'' if is_open else opener}\nHm, <b>.\n\nSo. \n{closer}\n\nHello <think> you"
        for pieces in splits(text, seed=6, count=10):
            found = read(dialect, pieces, reasoning_open=is_open)
            assert found == [ReasoningDelta("Hm, <b>.\n\nSo."), TextDelta("Hello <think> you")]


@every_calling_dialect
def test_a_call_may_follow_a_thought(dialect: Dialect) -> None:
    if dialect is dialects.HARMONY:
        text = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{one_call(dialect)}"
    else:
        text = f"<think>Hm.</think>\n\n{one_call(dialect)}"
    for pieces in splits(text, seed=7, count=10):
        assert read(dialect, pieces) == [ReasoningDelta("Hm."), *call(0, "get_weather", PARIS)]


# --- grammars


@every_calling_dialect
def test_the_grammar_of_calls_allows_what_the_dialect_writes(dialect: Dialect) -> None:
    for required in (True, False):
        for parallel in (True, False):
            grammar = dialect.call_grammar(TOOLS, required=required, parallel=parallel)
            assert accepts(grammar, one_call(dialect).replace(" </b>", ""))
            if dialect is not dialects.HARMONY:
                assert accepts(grammar, two_calls(dialect)) is parallel or not required


@every_calling_dialect
def test_the_grammar_of_calls_allows_nothing_else(dialect: Dialect) -> None:
    grammar = dialect.call_grammar(TOOLS, required=True, parallel=True)
    right = one_call(dialect)
    assert accepts(grammar, right)
    assert not accepts(grammar, "")
    assert not accepts(grammar, "Hello")
    assert not accepts(grammar, right.replace("get_weather", "get_whether"))
    assert not accepts(grammar, right.replace("days", "daze"))
    assert not accepts(grammar, right[:-1])
    if dialect is dialects.GLM:
        wrong = right.replace("<arg_value>3<", "<arg_value>three<")
        missing = "<tool_call>get_weather\n</tool_call>"
    elif dialect is dialects.QWEN_XML:
        wrong = right.replace("\n3\n", "\nthree\n")
        missing = "<tool_call>\n<function=get_weather>\n</function>\n</tool_call>"
    else:
        wrong = right.replace('"days": 3', '"days": "3"')
        missing = right.replace(PARIS, "{}")
    assert wrong != right
    assert missing != right
    assert not accepts(grammar, wrong)
    assert not accepts(grammar, missing)


@every_calling_dialect
def test_optional_calls_allow_text_but_must_be_valid(dialect: Dialect) -> None:
    text = "<|channel|>final<|message|>Hello, <b>you</b>." if dialect is dialects.HARMONY else "Hello, <b>you</b>."
    for parallel in (True, False):
        grammar = dialect.call_grammar(TOOLS, required=False, parallel=parallel)
        assert accepts(grammar, text)
        assert not accepts(grammar, one_call(dialect).replace("get_weather", "get_whether"))
        if dialect in MARKING:
            assert accepts(grammar, f"One moment. {one_call(dialect)}")
            assert not accepts(grammar, f"One moment. {one_call(dialect).replace('days', 'daze')}")


VALUES = {"city": ("x", "Großstadt", "a\nb", "", " <i> "), "days": (0, -3, 12), "unit": ("celsius", "kelvin")}


def written(dialect: Dialect, arguments: dict[str, object]) -> str:
    """Returns a call of get_weather with these arguments, written without the library's code."""
    text = json.dumps(arguments, ensure_ascii=False)
    bare = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    if dialect is dialects.GLM:
        pairs = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in bare.items())
        return f"<tool_call>get_weather{pairs}</tool_call>"
    if dialect is dialects.QWEN_XML:
        pairs = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in bare.items())
        return f"<tool_call>\n<function=get_weather>\n{pairs}</function>\n</tool_call>"
    return one_call(dialect).replace(PARIS, text)


@every_calling_dialect
def test_output_of_the_grammar_is_parsed_as_the_same_call(dialect: Dialect) -> None:
    grammar = dialect.call_grammar(TOOLS, required=True, parallel=False)
    chance = random.Random(f"{dialect.name}-arguments")  # noqa: S311 (a fixed seed)
    for _ in range(40):
        arguments: dict[str, object] = {"city": chance.choice(VALUES["city"])}
        for key in ("days", "unit"):
            if chance.random() < 0.5:
                arguments[key] = chance.choice(VALUES[key])
        if chance.random() < 0.5:
            arguments["tags"] = chance.choice([[], ["a"], ["<b>", "]"]])
        text = written(dialect, arguments)
        assert accepts(grammar, text), text
        (started, emitted, ended) = read(dialect, [text])
        assert (started, ended) == (CallStarted(0, "get_weather"), CallEnded(0))
        assert isinstance(emitted, CallArguments)
        assert json.loads(emitted.text) == arguments


@every_calling_dialect
def test_a_tool_without_arguments_takes_none(dialect: Dialect) -> None:
    grammar = dialect.call_grammar([NOW], required=True, parallel=False)
    text = written(dialect, {}).replace("get_weather", "now")
    assert accepts(grammar, text)
    assert read(dialect, [text]) == call(0, "now", "{}")
    assert not accepts(grammar, written(dialect, {"city": "x"}).replace("get_weather", "now"))


def test_a_plain_model_has_no_calls() -> None:
    assert dialects.PLAIN.call_grammar([WEATHER], required=True, parallel=True) == ""
    assert read(dialects.PLAIN, ["<tool_call>", '{"name": "now"}']) == [TextDelta('<tool_call>{"name": "now"}')]


# --- choice of dialect


def test_the_template_determines_the_dialect() -> None:
    for template, expected in [
        ("", dialects.HERMES_IN_PROMPT),
        ("{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}", dialects.HERMES_IN_PROMPT),
        ("{{ raise_exception('System role not supported') }}", dialects.PLAIN),
        ('<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args>}\\n</tool_call>', dialects.HERMES),
        ('{{- "<tool_call>\n" }}\n{{- \'{"name": <function-name>', dialects.HERMES),
        ('within <tool_call></tool_call>: <tool_calls>[{"name": <function>}]</tool_calls>', dialects.HERMES_IN_PROMPT),
        ("'<tool_call>\\n<function=' + name + '>\\n<parameter='", dialects.QWEN_XML),
        ("<seed:tool_call>\\n<function=f>\\n<parameter=p>", dialects.HERMES_IN_PROMPT),
        ("<tool_call>{function-name}\n<arg_key>{arg-key}</arg_key>", dialects.GLM),
        ("'<TOOLCALL>[' ~ calls", dialects.NEMOTRON),
        ("'[TOOL_CALLS][' + calls", dialects.MISTRAL_LIST),
        ("'[TOOL_CALLS]' + name + '[ARGS]'", dialects.MISTRAL),
        ('{"name": function name, "parameters": dictionary of arguments}', dialects.LLAMA3),
        ("<|start|>assistant<|channel|>final<|message|>", dialects.HARMONY),
    ]:
        with case(template=template, expected=expected):
            assert choose(template, "llama") is expected


def test_gpt_oss_uses_harmony_with_any_template() -> None:
    assert choose("", "gpt-oss") is dialects.HARMONY


def test_every_dialect_has_a_name_of_its_own() -> None:
    assert len({one.name for one in ALL}) == len(ALL)
