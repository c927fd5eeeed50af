"""OpenAI's Responses requests: every parameter of the official SDK is read, refused by name, or without effect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.api import httpbody_pb2
from openai.types.responses import ResponseInputImageParam, ResponseOutputMessage
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import (
    ResponseCreateParamsBase,
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)

from services.errors import AllmError, InvalidRequest, Unsupported
from services.text.api.responses.openai import item_object, tool_objects
from services.text.api.responses.openai_items import ImageBody
from services.text.api.responses.openai_request import ResponseBody, platform_tools, read_request
from services.text.conversation import OutputFormat, ToolChoice
from services.text.engine.sampling import SamplingParams
from services.text.responses.item_messages import messages_of
from services.text.responses.response import (
    FunctionCallItem,
    FunctionOutputItem,
    Item,
    ItemReference,
    MessageItem,
    OutputName,
    Part,
    ReasoningItem,
    ResponseSettings,
    flat_name,
)
from tests.case import case

# Hints at caching, which change no answer.
NO_EFFECT = {"prompt_cache_retention": "24h"}
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
TOOL = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}


DATA_URL = "data:image/png;base64,aGk="
URL = "input[0].content[0].image_url"
FILED = {"type": "input_image", "file_id": "f"}


def body(**parameters: Any) -> dict[str, Any]:
    return {"model": "m", "input": "hello"} | parameters


def read(content: dict[str, Any] | bytes) -> Any:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return read_request(httpbody_pb2.HttpBody(content_type="application/json", data=data))[1]


def asked(**parameters: Any) -> ResponseSettings:
    found: ResponseSettings = read(body(**parameters)).settings
    return found


def items(*given: Any) -> tuple[Item | ItemReference, ...]:
    found: tuple[Item | ItemReference, ...] = read(body(input=list(given))).input
    return found


def refusal(content: dict[str, Any] | bytes) -> AllmError:
    with pytest.raises((InvalidRequest, Unsupported)) as caught:
        read(content)
    assert caught.value.http_status == 400
    return caught.value


def test_the_smallest_request() -> None:
    request = read(body())
    assert request.model == "m"
    assert request.settings == ResponseSettings()
    (item,) = request.input
    assert (item.role, item.content) == ("user", (Part(text="hello"),))
    assert item.id.startswith("msg_")


def test_every_parameter_of_the_official_sdk_is_read_or_refused_or_without_effect() -> None:
    kinds = (
        ResponseCreateParamsBase,
        ResponseCreateParamsNonStreaming,
        ResponseCreateParamsStreaming,
        InputTokenCountParams,
    )
    official = {name for kind in kinds for name in kind.__annotations__}
    assert official - set(ResponseBody.__struct_fields__) == set(NO_EFFECT)


def test_parameters_without_effect_and_unknown_ones_are_accepted() -> None:
    hints = {"prompt_cache_options": {"mode": "implicit", "ttl": "30m", "prewarm": False}}
    assert asked(**NO_EFFECT, **hints, invented_next_year={"deep": [1]}) == ResponseSettings()


def test_null_means_absent() -> None:
    optional = [name for name in ResponseBody.__struct_fields__ if name not in ("model", "input")]
    assert asked(**dict.fromkeys(optional)) == ResponseSettings()


@pytest.mark.parametrize("missing", ["model", "input"])
def test_missing_required_fields_are_named(missing: str) -> None:
    error = refusal({name: value for name, value in body().items() if name != missing})
    assert (error.param, error.message) == (missing, f"Missing required parameter: '{missing}'.")


def test_continuation_needs_no_input() -> None:
    assert read({"model": "m", "previous_response_id": "resp_1"}).input == ()


def test_every_sampling_parameter_reaches_the_model() -> None:
    for parameter, value, field, expected in [
        ("temperature", 0, "temperature", 0.0),
        ("top_p", 0.5, "top_p", 0.5),
        ("max_output_tokens", 5, "max_tokens", 5),
        ("top_k", 40, "top_k", 40),
        ("min_p", 0.05, "min_p", 0.05),
        ("seed", -1, "seed", 2**64 - 1),
        ("presence_penalty", 0.5, "presence_penalty", 0.5),
        ("frequency_penalty", 0.5, "frequency_penalty", 0.5),
        ("repeat_penalty", 1.1, "repeat_penalty", 1.1),
        ("stop", "end", "stop", ("end",)),
        ("stop", ["a", "b"], "stop", ("a", "b")),
        ("ignore_eos", True, "ignore_eos", True),
    ]:
        with case(parameter=parameter, value=value, field=field, expected=expected):
            plain = {name: getattr(SamplingParams(), name) for name in SamplingParams.__dataclass_fields__}
            assert asked(**{parameter: value}).sampling == SamplingParams(**(plain | {field: expected}))


def test_parameters_are_read() -> None:
    for parameters, field, expected in [
        ({"instructions": "i"}, "instructions", "i"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "resp_1"),
        ({"store": False}, "store", False),
        ({"background": True}, "background", True),
        ({"background": True, "stream": True}, "streamed", True),
        ({"stream": True}, "streamed", False),
        ({"truncation": "auto"}, "shorten", True),
        ({"truncation": "disabled"}, "shorten", False),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", False),
        ({"max_tool_calls": 2}, "max_tool_calls", 2),
        ({"max_tool_calls": 0}, "max_tool_calls", 0),
        ({"metadata": {"a": "b"}}, "metadata", {"a": "b"}),
        ({"reasoning": {"effort": "low"}}, "reasoning_effort", "low"),
        ({"reasoning": {"summary": "auto"}}, "summary", "auto"),
        ({"include": ["message.output_text.logprobs"]}, "logprobs", 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, "logprobs", 3),
        ({"include": ["reasoning.encrypted_content", "file_search_call.results"]}, "logprobs", None),
        ({"top_logprobs": 3}, "logprobs", 3),
        ({"top_logprobs": 0}, "logprobs", None),
        ({"user": "u"}, "user", "u"),
        ({"prompt_cache_key": "k"}, "prompt_cache_key", "k"),
        ({"safety_identifier": "s"}, "safety_identifier", "s"),
        ({"text": {"format": {"type": "json_object"}}}, "output", OutputFormat(kind="json_object")),
        ({"text": {"format": {"type": "text"}, "verbosity": "medium"}}, "output", OutputFormat()),
        ({"service_tier": "auto"}, "store", None),
        ({"image": {"context_compression": "disabled"}}, "store", None),
        (
            {"tools": [TOOL | {"allowed_callers": ["programmatic", "direct"], "async": False, "defer_loading": False}]},
            "store",
            None,
        ),
    ]:
        with case(parameters=parameters, field=field, expected=expected):
            assert getattr(asked(**parameters), field) == expected


def test_a_schema_keeps_its_order_and_its_name() -> None:
    wanted = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    found = asked(text={"format": wanted})
    assert found.output == OutputFormat(kind="json_schema", schema=SCHEMA)
    assert list((found.output.schema or {})["properties"]) == ["b", "a"]
    assert found.output_name == OutputName(name="n", strict=True)


def test_functions_are_strict_if_they_can_be_unless_they_say_otherwise() -> None:
    plain = {name: value for name, value in TOOL.items() if name != "strict"}
    tools = [plain, {**plain, "name": "g", "strict": False}, {**plain, "name": "h", "parameters": None}]
    assert [tool.strict for tool in asked(tools=tools).tools] == [None, False, True]


def test_a_choice_of_tools_is_read() -> None:
    for choice, expected in [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice(mode="none")),
        ("required", ToolChoice(mode="required")),
        ({"type": "function", "name": "f"}, ToolChoice(mode="required", names=frozenset({"f"}))),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            ToolChoice(names=frozenset({"f"})),
        ),
    ]:
        with case(choice=choice, expected=expected):
            assert asked(tools=[TOOL], tool_choice=choice).tool_choice == expected


def test_namespaces_are_flattened_and_returned_as_they_came() -> None:
    plain = {"type": "function", "name": "run", "description": None, "parameters": SCHEMA, "strict": False}
    group = {"type": "namespace", "name": "mcp__docs__", "description": "d", "tools": [plain, {**plain, "name": "x"}]}
    long = {"type": "namespace", "name": "n" * 60, "description": "", "tools": [plain]}
    settings = asked(tools=[{**plain, "name": "f"}, group, long])
    names = [tool.name for tool in settings.tools]
    assert names[:3] == ["f", "mcp__docs__run", "mcp__docs__x"]
    assert len(names[3]) == 64
    assert names[3] == flat_name("n" * 60, "run") != flat_name("n" * 60, "ran")
    assert tool_objects(settings.tools) == [{**plain, "name": "f"}, group, long]
    choice = {"type": "function", "namespace": "mcp__docs__", "name": "x"}
    assert asked(tools=[group], tool_choice=choice).tool_choice.names == {"mcp__docs__x"}
    (item,) = items({"type": "function_call", "call_id": "c", "namespace": "a", "name": "b", "arguments": "{}"})
    assert item_object(item)["namespace"] == "a"
    assert messages_of((item,), None)[0].tool_calls[0].name == "a__b"
    inner = {"type": "namespace", "name": "a", "tools": [{"type": "web_search"}]}
    assert refusal(body(tools=[TOOL, inner])).param == "tools[1].tools[0]"


def test_tools_of_the_platform_are_left_out_beside_the_callers_own() -> None:
    search, image = {"type": "web_search", "external_web_access": False}, {"type": "image_generation"}
    given = [search, TOOL, image]
    assert [tool.name for tool in asked(tools=given).tools] == ["f"]
    assert platform_tools(given) == {0: "web_search", 2: "image_generation"}
    assert platform_tools([search]) == {}
    assert refusal(body(tools=[search])).param == "tools[0]"
    assert refusal(body(tools=[TOOL, {"type": "custom", "name": "c"}])).param == "tools[1]"


def test_unsupported_parameters_are_refused_by_name() -> None:
    for parameters, param in [
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"access_programs": {"cyber": "standard"}}, "access_programs"),
        ({"background_options": {"continuation_id": "c"}}, "background_options"),
        ({"image": {"context_compression": "enabled"}}, "image"),
        ({"personality": "friendly"}, "personality"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"reasoning": {"generate_summary": "concise"}}, "reasoning.generate_summary"),
        ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
        (
            {"prompt_cache_options": {"comparison_response_id": "resp_1"}},
            "prompt_cache_options.comparison_response_id",
        ),
        ({"include": ["message.output_text.logprobs", "thoughts"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [TOOL, {"type": "custom", "name": "c"}]}, "tools[1]"),
        ({"tools": [TOOL | {"allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [TOOL | {"async": True}]}, "tools[0].async"),
        ({"tools": [TOOL], "tool_choice": {"type": "mcp", "server_label": "s"}}, "tool_choice"),
        ({"input": [{"role": "user", "content": [FILED]}]}, "input[0].content[0].file_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "computer_call"}]}, "input[0]"),
    ]:
        with case(parameters=parameters, param=param):
            error = refusal(body(**parameters))
            assert isinstance(error, Unsupported)
            assert error.param == param
            assert f"'{param}'" in error.message


def test_invalid_values_are_refused_with_their_position() -> None:
    for parameters, param in [
        ({"model": 1}, "model"),
        ({"input": 1}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].image_url"),
        ({"input": [{"role": "user", "content": [{**FILED, "file_id": None, "image_url": "x"}]}]}, URL),
        ({"input": [{"role": "user", "content": [{**FILED, "detail": "huge"}]}]}, "input[0].content[0].detail"),
        ({"input": [{}]}, "input[0].id"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"role": "user", "content": "x", "id": "x" * 300}]}, "input[0]"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"truncation": "some"}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"user": "u" * 513}, "user"),
        ({"max_tool_calls": -1}, "max_tool_calls"),
        ({"stream_options": {}}, "stream_options"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "g"}, "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}, "tools": [TOOL]}, "tool_choice.tools"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "name": "", "schema": SCHEMA}}}, "text.format.name"),
        ({"seed": 2**63}, "seed"),
    ]:
        with case(parameters=parameters, param=param):
            error = refusal(body(**parameters))
            assert isinstance(error, InvalidRequest)
            assert error.param == param


def test_every_item_is_read() -> None:
    found = items(
        {"role": "user", "content": "a"},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "b"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "s"}],
            "encrypted_content": "x",
        },
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc_1"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "o"}]},
        {"type": "item_reference", "id": "msg_9"},
        {"id": "msg_9"},
    )
    user, developer, thought, call, output, reference, untyped = found
    assert isinstance(user, MessageItem)
    assert isinstance(developer, MessageItem)
    assert (user.role, developer.role, developer.content) == ("user", "developer", (Part(text="b"),))
    assert thought == ReasoningItem(id="rs_1", text="", summary=("s",))
    assert call == FunctionCallItem(id="fc_1", call_id="c", name="f", arguments="{}")
    assert isinstance(output, FunctionOutputItem)
    assert (output.call_id, output.output) == ("c", "o")
    assert reference == untyped == ItemReference(id="msg_9")


def test_pictures_are_read_as_the_sdk_has_them_and_returned_as_they_came() -> None:
    known = {"type", "prompt_cache_breakpoint", *ImageBody.__struct_fields__}
    assert ResponseInputImageParam.__annotations__.keys() == known
    text, plain = {"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": DATA_URL}
    result = {"type": "function_call_output", "call_id": "c"}
    for content, parts in (
        ([text, {**plain, "detail": "original"}], (Part(text="a"), Part(text="", image_url=DATA_URL, detail="high"))),
        ([plain], (Part(text="", image_url=DATA_URL),)),
    ):
        message, output = items({"role": "user", "content": content}, {**result, "output": content})
        assert isinstance(message, MessageItem)
        assert isinstance(output, FunctionOutputItem)
        assert message.content == output.parts == parts
        shown = item_object(message)["content"]
        assert shown == item_object(output)["output"]
        assert shown[-1]["image_url"] == DATA_URL
        assert items(item_object(message), item_object(output)) == (message, output)
    assert item_object(items({**result, "output": [text]})[0])["output"] == "a"


def test_output_can_be_sent_back_as_it_came() -> None:
    sent: tuple[Item, ...] = (
        ReasoningItem(id="rs_1", text="hm"),
        MessageItem(id="msg_1", role="assistant", content=(Part(text="hi"), Part(text="no", refusal=True))),
        FunctionCallItem(id="fc_1", call_id="c", name="f", arguments="{}"),
    )
    assert items(*map(item_object, sent)) == sent
    official = ResponseOutputMessage.model_validate(item_object(sent[1]))
    assert items(official.model_dump()) == (sent[1],)


def test_hostile_bodies_are_refused() -> None:
    for data in [
        b"",
        b"[]",
        b'{"model":"m","input":"\\ud800"}',
        b'{"model":"m","input":' + b"[" * 100_000,
        b'{"model":"m","input":"x","tools":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model":"m","input":"x","text":{"format":' + b'{"a":' * 100_000,
    ]:
        with case(data=data):
            assert refusal(data).code == "INVALID_REQUEST"
