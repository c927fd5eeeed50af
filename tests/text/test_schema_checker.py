"""The checker of schemas, in its real process: what compiles, what takes too long, and whose turn it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bench.attack.text import large_schema, slow_schema
from services.auth.caller import Caller, keep_caller
from services.auth.identity import INFERENCE, Identity
from services.errors import InvalidRequest
from services.text.conversation import ChatRequest, Message, OutputFormat, Tool, ToolChoice
from services.text.engine.sampling import SamplingParams
from services.text.schema_checker import SchemaChecker

CITY = {"type": "object", "properties": {"city": {"type": "string", "format": "path"}}, "required": ["city"]}
IMPOSSIBLE = {"type": "array", "uniqueItems": True}


def asked(**parameters: Any) -> ChatRequest:
    messages = (Message(role="user", content="x"),)
    return ChatRequest(model="m", messages=messages, sampling=SamplingParams(), **parameters)


def output(schema: dict[str, Any]) -> OutputFormat:
    return OutputFormat(kind="json_schema", schema=schema)


@asynccontextmanager
async def checker() -> AsyncIterator[SchemaChecker]:
    found = SchemaChecker(queue=8)
    try:
        yield found
    finally:
        await found.close()


async def test_tools_are_settled_and_schemas_are_those_of_the_compiler() -> None:
    tools = (
        Tool(name="plain", parameters=CITY),
        Tool(name="possible", parameters=CITY, strict=None),
        Tool(name="impossible", parameters=IMPOSSIBLE, strict=None),
        Tool(name="nothing", strict=None),
    )
    async with checker() as schemas:
        found = await schemas.checked(asked(tools=tools))
        free = await schemas.checked(asked(tools=tools[:1]))
        required = await schemas.checked(asked(tools=tools[:1], tool_choice=ToolChoice(mode="required")))
    assert [tool.strict for tool in found.tools] == [False, True, False, True]
    assert found.tool_schemas is not None
    assert found.tool_schemas.keys() == {"plain", "possible", "impossible"}
    assert found.tool_schemas["possible"]["properties"] == {"city": {"type": "string"}}
    assert free.tool_schemas == {}
    assert required.tool_schemas == {"plain": found.tool_schemas["plain"]}


async def test_a_schema_that_cannot_be_followed_is_refused_by_name() -> None:
    tools = (Tool(name="good", parameters=CITY, strict=True), Tool(name="bad", parameters=IMPOSSIBLE, strict=True))
    async with checker() as schemas:
        for _ in range(2):  # the second time from memory
            with pytest.raises(InvalidRequest, match="uniqueItems") as caught:
                await schemas.checked(asked(output=output(IMPOSSIBLE)))
            assert caught.value.param == "response_format"
        with pytest.raises(InvalidRequest, match="uniqueItems") as caught:
            await schemas.checked(asked(tools=tools))
        assert caught.value.param == "tools[1].parameters"


async def test_a_schema_that_the_worker_would_not_compile_is_refused_here_by_name() -> None:
    large = large_schema("a")
    async with checker() as schemas:
        with pytest.raises(InvalidRequest, match="too complex") as caught:
            await schemas.checked(asked(output=output(large)))
        assert caught.value.param == "response_format"
        loose = await schemas.checked(
            asked(tools=(Tool(name="a", parameters=large, strict=None), Tool(name="b", parameters=CITY, strict=None)))
        )
        assert [tool.strict for tool in loose.tools] == [False, True]


async def test_all_schemas_of_a_request_share_one_limit_and_others_take_turns() -> None:
    tools = tuple(Tool(name=f"tool{at}", parameters=slow_schema(f"t{at}"), strict=True) for at in range(128))
    ended: list[str] = []

    async def check(key: str, request: ChatRequest) -> None:
        keep_caller(Caller(Identity(key, frozenset((INFERENCE,)))))
        try:
            await schemas.checked(request)
        finally:
            ended.append(key)

    async with checker() as schemas:
        hostile = [asyncio.create_task(check("hostile", asked(tools=tools[at:]))) for at in range(3)]
        await asyncio.sleep(0)
        await asyncio.create_task(check("other", asked(output=output(CITY))))
        assert ended.count("hostile") <= 1
        with pytest.raises(InvalidRequest, match="too much processor time") as caught:
            await hostile[0]
        assert caught.value.param == "tools"
        for task in hostile[1:]:  # a caller that hangs up ends the work for it
            task.cancel()
        await asyncio.gather(*hostile, return_exceptions=True)
        await schemas.checked(asked(output=output({"type": "integer"})))
