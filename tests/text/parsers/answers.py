"""Sample answers and readers for the tests of all dialects."""

from __future__ import annotations

import random
from collections.abc import Iterator

from services.text.conversation import CallArguments, CallEnded, CallStarted, ParsedEvent, ReasoningDelta, TextDelta
from services.text.parsers.dialect import Dialect
from services.text.parsers.tool_grammar import ToolShape

WEATHER = ToolShape(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
)
NOW = ToolShape("now", None)
TOOLS = (WEATHER, NOW)

PARIS = '{"city": "Paris \\"é\\" </b>", "days": 3}'
QWEN_PARIS = (
    '<tool_call>\n<function=get_weather>\n<parameter=city>\nParis "é" </b>\n</parameter>\n'
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
GLM_PARIS = (
    '<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris "é" </b></arg_value>\n'
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
)
# One call, and two consecutive calls, in each dialect.
CALLS = {
    "harmony": ("<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" + PARIS, None),
    "mistral": (f"[TOOL_CALLS]get_weather[ARGS]{PARIS}", "[TOOL_CALLS]now[ARGS]{}"),
    "mistral-list": (
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {PARIS}}}]',
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "now", "arguments": {{}}}}]',
    ),
    "nemotron": (
        f'<TOOLCALL>[{{"name": "get_weather", "arguments": {PARIS}}}]</TOOLCALL>',
        f'<TOOLCALL>[{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "now", "arguments": {{}}}}]</TOOLCALL>',
    ),
    "glm": (GLM_PARIS, "\n<tool_call>now\n</tool_call>"),
    "qwen-xml": (QWEN_PARIS, "\n<tool_call>\n<function=now>\n</function>\n</tool_call>"),
    "hermes": (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>',
        '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    ),
    "llama3": (
        f'{{"name": "get_weather", "parameters": {PARIS}}}',
        '; {"name": "now", "parameters": {}}',
    ),
}
CALLS["hermes-in-prompt"] = CALLS["hermes"]


def merged(events: list[ParsedEvent]) -> list[ParsedEvent]:
    """Merges consecutive events of the same kind."""
    found: list[ParsedEvent] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            found[-1] = TextDelta(last.text + event.text)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            found[-1] = ReasoningDelta(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments) and last.index == event.index:
            found[-1] = CallArguments(last.index, last.text + event.text)
        else:
            found.append(event)
    return found


def read(dialect: Dialect, pieces: list[str], *, reasoning_open: bool = False) -> list[ParsedEvent]:
    """Returns the events that a dialect's parser reads from an answer in pieces."""
    parser = dialect.parser(TOOLS, reasoning_open=reasoning_open)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    assert all(getattr(event, "text", "x") for event in events), "no text is empty"
    return merged(events)


def call(index: int, name: str, arguments: str) -> list[ParsedEvent]:
    """Returns the events of one call."""
    return [CallStarted(index, name), CallArguments(index, arguments), CallEnded(index)]


def splits(text: str, seed: int, count: int = 30) -> Iterator[list[str]]:
    """Yields the text cut in two at every position, cut into characters, and cut at random."""
    yield list(text)
    for at in range(len(text) + 1):
        yield [text[:at], text[at:]]
    chance = random.Random(seed)  # noqa: S311 (a fixed seed)
    for _ in range(count):
        cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randint(2, 12)))
        yield [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
