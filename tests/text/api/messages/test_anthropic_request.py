"""Anthropic's Messages: every parameter of the official SDK is read, refused by name, or without effect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Base64ImageSourceParam, ImageBlockParam, URLImageSourceParam
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming
from google.api import httpbody_pb2

from services.errors import AllmError, InvalidRequest, Unsupported
from services.text.api.messages.anthropic_blocks import ImageBlock, ImageSource
from services.text.api.messages.anthropic_request import CreateBody, PromptBody, platform_tools, read_request
from services.text.conversation import ChatRequest, Message, OutputFormat, Picture, Tool, ToolCall, ToolChoice
from services.text.engine.sampling import SamplingParams
from tests.case import case
from tests.text.checked_request import checked_request

HELLO = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"name": "f", "input_schema": SCHEMA}
DATA = "iVBORw0="
EXACT = {"type": "image", "source": {"type": "file"}, "transformations": {"oversized_image": "error"}}
URL = "messages[0].content[0].source.url"
UNKNOWN = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "document"}]}
# Parameters of the SDK that have no effect here, and are named as unknown ones.
WITHOUT_EFFECT = {"diagnostics", "inference_geo", "speed", "user_profile_id", "workspace_id"}


def read(**parameters: Any) -> ChatRequest:
    content = {"model": "m", "messages": [HELLO], "max_tokens": 5, **parameters}
    return read_request(httpbody_pb2.HttpBody(data=json.dumps(content).encode()), CreateBody)[1]


def refusal(**parameters: Any) -> AllmError:
    with pytest.raises((InvalidRequest, Unsupported)) as caught:
        checked_request(read(**parameters))
    assert caught.value.http_status == 400
    return caught.value


def picture(**source: Any) -> dict[str, Any]:
    return {"type": "image", "source": source or {"type": "base64", "media_type": "image/png", "data": DATA}}


def messages(*given: dict[str, Any], **parameters: Any) -> tuple[Message, ...]:
    return read(messages=list(given), **parameters).messages


def test_every_parameter_of_the_sdk_is_known() -> None:
    known = set(CreateBody.__struct_fields__)
    asked = MessageCreateParamsNonStreaming.__annotations__.keys() | MessageCreateParamsStreaming.__annotations__.keys()
    assert asked - known == WITHOUT_EFFECT


def test_defaults() -> None:
    assert read() == ChatRequest(
        model="m",
        messages=(Message(role="user", content="hello"),),
        sampling=SamplingParams(max_tokens=5),
        reasoning_effort="none",
        effort_required=False,
        room_required=False,
    )


def test_a_count_needs_no_length() -> None:
    data = json.dumps({"model": "m", "messages": [HELLO], "system": "s"}).encode()
    request = read_request(httpbody_pb2.HttpBody(data=data), PromptBody)[1]
    assert [message.role for message in request.messages] == ["system", "user"]


def test_a_conversation_with_tools() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    calls = [{"type": "tool_use", "id": f"t{n}", "name": "f", "input": {"a": n, "ü": "ß"}} for n in (1, 2)]
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "one"}]},
        {"type": "tool_result", "tool_use_id": "t2", "content": "broken", "is_error": True},
        {"type": "tool_result", "tool_use_id": "t3"},
    ]
    said = {
        "role": "assistant",
        "content": [thought, {"type": "redacted_thinking", "data": "x"}, *_texts("I "), *calls],
    }
    assert messages(HELLO, said, {"role": "user", "content": [*results, *_texts("a", "b")]}) == (
        Message(role="user", content="hello"),
        Message(
            role="assistant",
            content="I ",
            reasoning="hm",
            tool_calls=tuple(ToolCall(id=f"t{n}", name="f", arguments=f'{{"a": {n}, "ü": "ß"}}') for n in (1, 2)),
        ),
        Message(role="tool", content="one", tool_call_id="t1"),
        Message(role="tool", content="Error: broken", tool_call_id="t2"),
        Message(role="tool", content="", tool_call_id="t3"),
        Message(role="user", content="a\n\nb"),
    )


def _texts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}} for text in texts]


def test_system_prompts_and_turns_of_the_same_role_are_joined() -> None:
    said = {"role": "assistant", "content": "yes"}
    later = {"role": "system", "content": _texts("later")}
    found = messages(HELLO, HELLO, said, {**said, "content": _texts("no")}, later, HELLO, system=_texts("a", "b"))
    assert [(message.role, message.content) for message in found] == [
        ("system", "a\n\nb"),
        ("user", "hello\n\nhello"),
        ("assistant", "yes\n\nno"),
        ("system", "later"),
        ("user", "hello"),
    ]


def test_tools_and_their_choice() -> None:
    tools = (Tool(name="f", description="d", parameters=SCHEMA, strict=True), Tool(name="g", parameters=SCHEMA))
    given = [{**TOOL, "description": "d", "strict": True, "type": "custom"}, {**TOOL, "name": "g"}]
    for choice, wanted in (
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "none"}, ToolChoice(mode="none")),
        ({"type": "any"}, ToolChoice(mode="required")),
        ({"type": "tool", "name": "g"}, ToolChoice(mode="required", names=frozenset("g"))),
    ):
        with case(choice=choice):
            request = read(tools=given, tool_choice=choice)
            assert (request.tools, request.tool_choice, request.parallel_tool_calls) == (tools, wanted, True)
    single = read(tools=given, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert not single.parallel_tool_calls


def test_tools_of_anthropics_are_left_out_beside_others() -> None:
    bash = {"type": "bash_20250124", "name": "bash"}
    assert [tool.name for tool in read(tools=[bash, TOOL]).tools] == ["f"]
    assert platform_tools([bash, TOOL]) == {0: "bash_20250124"}
    assert platform_tools([bash]) == {}


def test_thinking_and_effort() -> None:
    def enabled(budget: int) -> dict[str, Any]:
        return {"type": "enabled", "budget_tokens": budget}

    low: dict[str, Any] = {"output_config": {"effort": "low"}}
    for given, effort in (
        ({"thinking": {"type": "disabled"}, **low}, "none"),
        ({"thinking": {"type": "adaptive"}}, ""),
        ({"thinking": {"type": "between_tools"}}, ""),
        ({"thinking": {"type": "adaptive"}, **low}, "low"),
        (low, "low"),
        ({"thinking": enabled(1024)}, "low"),
        ({"thinking": enabled(4096)}, "medium"),
        ({"thinking": enabled(32_000)}, "high"),
        ({"thinking": enabled(32_000), **low}, "low"),
    ):
        with case(given=given):
            assert read(**given).reasoning_effort == effort


def test_stop_sequences_and_formats() -> None:
    assert read(stop_sequences=["a", "b"]).sampling.stop == ("a", "b")
    assert read(stop_sequences=[], stop="c").sampling.stop == ("c",)
    assert read(output_config={"format": {"type": "json_schema", "schema": SCHEMA}}).output == OutputFormat(
        kind="json_schema", schema=SCHEMA
    )


def test_pictures_stand_between_the_texts_of_a_message() -> None:
    sources = Base64ImageSourceParam.__annotations__.keys() | URLImageSourceParam.__annotations__.keys()
    assert sources == set(ImageSource.__struct_fields__)
    assert ImageBlockParam.__annotations__.keys() == {"type", "cache_control", *ImageBlock.__struct_fields__}
    one, two = {"type": "text", "text": "one"}, {"type": "text", "text": "two"}
    linked = picture(type="url", url="https://example.org/x.png")
    result = {"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": [one, picture(), two]}
    found = messages(
        {"role": "user", "content": [one, linked, two, two]}, {"role": "user", "content": [result, linked]}
    )
    where = "messages[0].content[1].source.url", "messages[1].content[0].content[1].source.data"
    assert found[0].content == "onetwo\n\ntwo"
    assert found[0].pictures == (Picture(at=3, param=where[0], url="https://example.org/x.png"),)
    assert found[1] == Message(
        role="tool",
        content="Error: onetwo",
        tool_call_id="t",
        pictures=(Picture(at=10, param=where[1], url=f"data:;base64,{DATA}"),),
    )
    assert (found[2].content, [each.at for each in found[2].pictures]) == ("", [0])
    (both,) = messages({"role": "user", "content": "hi"}, {"role": "user", "content": [linked, one]})
    assert (both.content, [each.at for each in both.pictures]) == ("hi\n\none", [4])


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "loud"}}, "thinking.type"),
        ({"container": "c"}, "container"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"compaction": {"type": "summarize"}}, "compaction"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{**TOOL, "input_schema": {"enum": ["x" * 300_000]}}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"messages": [HELLO, {"role": "assistant", "content": "x"}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].source"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [HELLO] * 20_000}, "messages"),
        ({"system": [picture()]}, "system[0].source.data"),
        ({"messages": [{"role": "system", "content": [picture()]}]}, "messages[0].content[0].source.data"),
        ({"messages": [{"role": "assistant", "content": [picture()]}, HELLO]}, "messages[0].content[0].source.data"),
        (
            {"messages": [{"role": "user", "content": [picture(type="file", file_id="f")]}]},
            "messages[0].content[0].source",
        ),
        (
            {"messages": [{"role": "user", "content": [picture(type="url", url="x")]}]},
            "messages[0].content[0].source.url",
        ),
        ({"messages": [{"role": "user", "content": [UNKNOWN]}]}, "messages[0].content[0].content[0]"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}}, "response_format"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals_name_the_parameter(parameters: dict[str, Any], param: str) -> None:
    assert refusal(**parameters).param == param
