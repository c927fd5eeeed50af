"""Chat templates in their rendering process: results, and limits on the cost of a template."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest

from services.errors import AllmError, InvalidRequest, ModelInvalid, ModelNotReady, Overloaded
from services.text.conversation import Message, Tool, ToolCall
from services.text.prompt import ChatTemplate
from services.text.template_process import MODULE, TemplateProcess

PATIENCE_SECONDS = 60
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
CALL = ToolCall(id="c", name="f", arguments='{"a": [1, "é"]}')
TURNS = (
    Message(role="user", content="Grüß Gott \U0001f642"),
    Message(role="assistant", content="", reasoning="hm", tool_calls=(CALL,)),
    Message(role="tool", content="42", tool_call_id="c"),
)
# A number that exceeds 64 bits, and keys that are not in alphabetical order.
TOOL = Tool(name="f", description="d", parameters={"type": "object", "a": 10**30, "B": [None, 0.1]}, strict=True)


@asynccontextmanager
async def prepared(source: str, *, queue: int = 4, **options: Any) -> AsyncIterator[TemplateProcess]:
    """Yields a compiled template that may use one second of processor time."""
    template = TemplateProcess("me", queue, cpu_seconds=1.0)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await template.prepare(source, **{"bos": "<s>", "eos": "</s>", "add_bos": False} | options)
            yield template
    finally:
        await template.close()


def renderers() -> list[psutil.Process]:
    """Returns the renderer processes of this process."""
    return [child for child in psutil.Process().children() if MODULE in child.cmdline()]


async def refused(template: TemplateProcess, kind: type[AllmError] = InvalidRequest) -> str:
    with pytest.raises(kind) as caught:
        await template.render(TURNS)
    assert caught.value.param == "messages"
    return caught.value.message


async def test_a_prompt_is_what_the_template_makes_of_the_conversation() -> None:
    source = "{{ bos_token }}{{ messages|tojson }}{{ tools|tojson }}{{ reasoning_effort }}"
    expected = ChatTemplate(source, bos="<s>", eos="</s>", add_bos=True).render(TURNS, (TOOL,), "low")
    async with prepared(source, add_bos=True) as template:
        assert await template.render(TURNS, (TOOL,), "low") == expected
        assert template.thinks
    assert '"a": 1000000000000000000000000000000, "B": [null, 0.1]' in expected
    assert not renderers()


async def test_a_caller_sets_variables_before_those_of_an_effort() -> None:
    source = "{{ enable_thinking }} {{ reasoning_effort }} {{ extra|tojson }}"
    async with prepared(source) as template:
        variables = {"reasoning_effort": "mine", "extra": {"a": [10**30]}, "unheard_of": 1}
        assert (
            await template.render(TURNS, (), "low", variables) == 'True mine {"a": [1000000000000000000000000000000]}'
        )
        assert template.unused(variables) == ["unheard_of"]


async def test_the_template_s_own_words_are_quoted() -> None:
    async with prepared("{{ raise_exception('no tools') if tools else raise_exception('nothing') }}") as template:
        assert await refused(template) == "the model's chat template refuses the conversation: nothing"
        assert not template.thinks
    async with prepared("{{ '\\ud800' }}") as template:
        assert "not valid text" in await refused(template)


async def test_invalid_template_is_an_error_of_the_model() -> None:
    with pytest.raises(ModelInvalid, match="does not compile"):
        async with prepared("{% if %}"):
            pass
    assert not renderers()


async def test_jinja_libraries_are_available_in_the_sandbox() -> None:
    async with prepared("{{ lipsum(n=1) }}{{ messages|pprint }}{{ strftime_now('%Y %Z') }}") as template:
        assert await template.render(TURNS)


@pytest.mark.parametrize(
    "source",
    [
        ENDLESS,
        "{% set n = namespace(x=messages) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    ],
)
async def test_a_template_that_never_ends_is_ended_and_the_next_conversation_is_rendered(source: str) -> None:
    endless = f"{{% if messages|length > 1 %}}{source}{{% endif %}}fine"
    async with prepared(endless) as template:
        assert await template.render(TURNS[:1]) == "fine"
        (before,) = renderers()
        assert await refused(template) in (
            "the model's chat template takes more processor time or memory than a template is allowed with this "
            "conversation",
            "the model's chat template fails on this conversation: MemoryError",
        )
        assert await template.render(TURNS[:1]) == "fine"
        assert source != ENDLESS or renderers() != [before]


async def test_service_continues_meanwhile_and_a_cancelled_caller_disturbs_no_other() -> None:
    async with prepared(f"{{% if messages|length > 1 %}}{ENDLESS}{{% endif %}}fine") as template:
        hostile = asyncio.create_task(template.render(TURNS))
        gone = asyncio.create_task(template.render(TURNS[:1]))
        patient = asyncio.create_task(template.render(TURNS[:1]))
        turns = 0
        while not hostile.done():
            await asyncio.sleep(0)
            turns += 1
            gone.cancel()
        assert turns > 100
        assert await patient == "fine"
        with pytest.raises(InvalidRequest):
            await hostile


async def test_no_more_wait_than_are_allowed() -> None:
    async with prepared("fine", queue=2) as template:
        asked = [asyncio.create_task(template.render(TURNS)) for _ in range(5)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [answer for answer in answers if isinstance(answer, str)] == ["fine", "fine"]
    assert all(isinstance(answer, Overloaded) for answer in answers if not isinstance(answer, str))


async def test_a_caller_waiting_while_the_model_ends_is_asked_to_retry() -> None:
    async with prepared("fine") as template:
        asked = [asyncio.create_task(template.render(TURNS)) for _ in range(3)]
        await asyncio.sleep(0)
        await template.close()
        for each in asked:
            with pytest.raises(ModelNotReady, match="try again"):
                await each


async def test_a_caller_leaving_while_the_model_ends_gets_no_answer() -> None:
    async with prepared("fine") as template:
        asked = asyncio.create_task(template.render(TURNS))
        await asyncio.sleep(0)
        asked.cancel()
        await template.close()
        with pytest.raises(asyncio.CancelledError):
            await asked


async def test_a_process_that_dies_in_between_is_replaced_unnoticed() -> None:
    async with prepared("fine") as template:
        (process,) = renderers()
        process.kill()
        process.wait(PATIENCE_SECONDS)
        assert await template.render(TURNS) == "fine"


async def test_a_conversation_that_only_memory_limits_is_refused() -> None:
    async with prepared("{{ messages[0].content * 1000000000 }}") as template:
        assert "chat template" in await refused(template)
        assert "chat template" in await refused(template)
