"""The answer format of gpt-oss: messages with a header that names the channel and, for a call, the tool.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.name
    <|constrain|>json<|message|>{...}<|call|>

Reasoning is in `analysis`. The answer is in `final` and in `commentary` without a recipient. The header parser is
lenient: models put the recipient before the channel, forget marks, or omit the header.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from services.text.parsers.reader import Reader, Reading
from services.text.parsers.tool_grammar import TEXT_RULE, Tools, ToolShape, arguments_rule, literal, numbered

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)
_BODY_ENDS = (START, CHANNEL, *ENDS)
_HEADER_STARTS = (START, CHANNEL, MESSAGE, CONSTRAIN, "to=")
_HEADER_BEGUN = ("<|", "to=")  # prefixes that never begin text
_NAMESPACE = "functions."
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*([a-z]+)")
# Limits of a header: with more marks, or more characters between two marks, it is text.
MAX_MARKS = 4
MAX_PART = 128


def harmony_grammar(tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
    """See Dialect. These models make one call at a time, optionally after reasoning."""
    headers = [f"{CHANNEL} {literal(f'commentary to={_NAMESPACE}{tool.name} ')} {CONSTRAIN}" for tool in tools]
    calls = [f'{header} "json" {MESSAGE} {arguments_rule(tool)}' for header, tool in zip(headers, tools, strict=True)]
    rules = [
        f'call_thought: {CHANNEL} "analysis" {MESSAGE} CALL_TEXT <|end|> {START} "assistant"',
        f'call_preamble: {CHANNEL} "commentary" {MESSAGE} CALL_TEXT <|end|> {START} "assistant"',
        TEXT_RULE,
        *numbered("call_body", calls),
    ]
    if required:
        return "\n".join(["start: call_thought? call_preamble? call_body", *rules])
    final = f'call_final: {CHANNEL} "final" {MESSAGE} CALL_TEXT'
    return "\n".join(["start: call_thought? call_preamble? (call_body | call_final)", final, *rules])


def read_harmony(reader: Reader, tools: Tools, reasoning_open: bool) -> Reading[None]:
    """See Dialect."""
    if reasoning_open:
        yield from _body(reader, thinks=True)
    while (yield from reader.peek()):
        reader.hold()
        header = yield from _header(reader)
        if header is None:
            if reader.broken_off and reader.held.lstrip().startswith(_HEADER_BEGUN):
                reader.drop()
                return
            reader.back()
            yield from _stray(reader)
            continue
        recipient = _RECIPIENT.search(header)
        if recipient:
            yield from _call(reader, tools, recipient[1].removeprefix(_NAMESPACE))
        else:
            channel = _CHANNEL_NAME.search(header)
            yield from _body(reader, thinks=channel is not None and channel[1].startswith("analysis"))


def _header(reader: Reader) -> Reading[str | None]:
    """Reads a header including its end mark. Returns None if there is none."""
    yield from reader.skip_space()
    if not (yield from reader.starts(*_HEADER_STARTS)):
        return None
    pieces: list[str] = []
    for _ in range(MAX_MARKS):
        mark = yield from reader.until(MARKS, pieces.append, MAX_PART)
        if not mark or mark in ENDS:
            return None
        pieces.append((yield from reader.take(len(mark))))
        if mark == MESSAGE:
            return "".join(pieces)
    return None


def _stray(reader: Reader) -> Reading[None]:
    """Reads text without a header as content, up to the next possible header."""
    if mark := (yield from reader.starts(*MARKS)):
        reader.content((yield from reader.take(len(mark))))
    yield from _body(reader, thinks=False)


def _body(reader: Reader, *, thinks: bool) -> Reading[None]:
    emit = reader.reasoning if thinks else reader.content
    mark = yield from reader.until(_BODY_ENDS, emit)
    if mark in ENDS:
        yield from reader.take(len(mark))
    if mark and thinks:
        reader.end_reasoning()


def _call(reader: Reader, tools: Tools, name: str) -> Reading[None]:
    if name not in tools:
        reader.give()
        mark = yield from reader.until(_BODY_ENDS, reader.content)
        if mark in ENDS:
            reader.content((yield from reader.take(len(mark))))
        return
    reader.start_call(name)
    yield from reader.skip_space()
    mark = yield from reader.until(_BODY_ENDS, reader.arguments)
    if mark in ENDS:
        yield from reader.take(len(mark))
    reader.end_call()
