"""Chat templates: programs that come with models, in the process that renders them for a service."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
from functools import cache

from services.errors import InvalidRequest
from services.text.conversation import Message, Picture, Tool, ToolCall
from services.text.template_process import TemplateProcess
from tests.fuzz.fuzz_target import FuzzTarget

CPU_SECONDS = 1.0  # for one template or conversation; a service gives more
WORDS = (
    *(
        b"{{ ",
        b" }}",
        b"{% ",
        b" %}",
        b"{%- ",
        b"{# ",
        b" #}",
        b"messages",
        b"message.content",
        b"tools",
        b"loop.index0",
    ),
    *(b"{% for m in messages %}", b"{% endfor %}", b"{% if m.role == 'user' %}", b"{% endif %}", b"{% set x = "),
    *(b"namespace(a='x')", b"{% macro f(a) %}", b"{% endmacro %}", b"f(f)", b" ~ ", b" * 9999999999", b" ** 99999"),
    *(
        b"|center(999999999)",
        b"|tojson(indent=99999999)",
        b"|indent",
        b"|replace('', 'xx')",
        b"|join",
        b"|sort",
        b"|list",
    ),
    *(
        b"range(99999)",
        b".__class__",
        b".__mro__",
        b"|attr('__init__')",
        b"raise_exception('no')",
        b"strftime_now('%Y')",
    ),
    *(b"{% for part in m.content %}", b"part.type == 'image'", b"part.text", b"<image>"),
    *(b"{% generation %}", b"{% endgeneration %}", b"{% break %}", b"'%999999999d' % 1", b"'{:>999999999}'.format(1)"),
)
CALL = ToolCall(id="c1", name="f", arguments='{"a": [1, "x"]}')
TURNS = (
    Message(role="system", content="Be brief."),
    Message(role="user", content="Grüß Gott \U0001f642"),
    Message(role="assistant", content="", reasoning="hm", tool_calls=(CALL,)),
    Message(role="tool", content="42", tool_call_id="c1"),
)
SEEN = Message(role="user", content="ab", pictures=(Picture(at=0, param=""), Picture(at=1, param="")))
MARK = "0123456789abcdef"
TOOLS = (Tool(name="f", description="d", parameters={"type": "object", "properties": {"a": {"maximum": 10**30}}}),)


def _template(case: bytes) -> None:
    """Reads the case as a template."""
    loop, process = _renderer()
    loop.run_until_complete(_rendered(process, case.decode(errors="replace")))


async def _rendered(process: TemplateProcess, source: str) -> None:
    await process.prepare(source, bos="<s>", eos="</s>", add_bos=True)
    assert isinstance(await process.render(TURNS, TOOLS, "low"), str)
    assert isinstance(await process.render(TURNS[:2]), str)
    with contextlib.suppress(InvalidRequest):  # many templates omit pictures
        assert (await process.render((SEEN,), mark=MARK)).count(MARK) == len(SEEN.pictures)


@cache
def _renderer() -> tuple[asyncio.AbstractEventLoop, TemplateProcess]:
    loop, process = asyncio.new_event_loop(), TemplateProcess("fuzzed", 4, CPU_SECONDS)

    def end() -> None:
        loop.run_until_complete(process.close())
        loop.close()

    atexit.register(end)
    return loop, process


TEMPLATE_TARGETS = (FuzzTarget("template", _template, words=WORDS, longest=8192, children=True, cases=25),)
