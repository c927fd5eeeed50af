"""OpenAI's Chat Completions: every parameter of the official SDK is read, refused by name, or without effect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.api import httpbody_pb2
from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion_content_part_image_param import ImageURL
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsBase,
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)

from services.errors import AllmError, InvalidRequest, Unsupported
from services.text.api.chat.openai import completion_object
from services.text.api.chat.openai_content import ImageUrl
from services.text.api.chat.openai_request import ChatCompletionRequest, read_request
from services.text.conversation import ChatRequest, Message, OutputFormat, Picture, Tool, ToolCall, ToolChoice, Usage
from services.text.engine.sampling import SamplingParams
from services.text.running_answer import AnswerContent
from tests.case import case
from tests.text.checked_request import checked_request

HELLO = [{"role": "user", "content": "hello"}]
HEAD = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": "m"}
USAGE = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3)


def whole(text: str) -> dict[str, Any]:
    return completion_object(HEAD, [AnswerContent(text=text, finish="stop")], USAGE, logprobs=False)


def body(**parameters: Any) -> dict[str, Any]:
    return {"model": "m", "messages": HELLO} | parameters


def read(content: dict[str, Any] | bytes) -> tuple[ChatCompletionRequest, ChatRequest]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return read_request(httpbody_pb2.HttpBody(content_type="application/json", data=data))[:2]


def sampling(**parameters: Any) -> SamplingParams:
    return read(body(**parameters))[1].sampling


def messages(*content: dict[str, Any]) -> tuple[Message, ...]:
    return read(body(messages=list(content)))[1].messages


def refusal(content: dict[str, Any] | bytes) -> AllmError:
    with pytest.raises((InvalidRequest, Unsupported)) as caught:
        checked_request(read(content)[1])
    assert caught.value.http_status == 400
    return caught.value


# --- reading: parameters


def test_the_smallest_request() -> None:
    asked, chat = read(body())
    assert chat == ChatRequest(model="m", messages=(Message(role="user", content="hello"),), sampling=SamplingParams())
    assert asked.stream is None


def test_every_sampling_parameter_reaches_the_model() -> None:
    for parameter, value, field, expected in [
        ("temperature", 0, "temperature", 0.0),
        ("temperature", 1.5, "temperature", 1.5),
        ("top_p", 0.5, "top_p", 0.5),
        ("top_k", 40, "top_k", 40),
        ("min_p", 0.05, "min_p", 0.05),
        ("seed", 7, "seed", 7),
        ("seed", 0, "seed", 0),
        ("seed", -1, "seed", 2**64 - 1),
        ("seed", -(2**63), "seed", 2**63),
        ("seed", 2**63 - 1, "seed", 2**63 - 1),
        ("presence_penalty", -0.5, "presence_penalty", -0.5),
        ("frequency_penalty", 0.5, "frequency_penalty", 0.5),
        ("repeat_penalty", 1.1, "repeat_penalty", 1.1),
        ("repetition_penalty", 1.1, "repeat_penalty", 1.1),
        ("logit_bias", {"50": -100, "7": 1.5}, "logit_bias", ((50, -100.0), (7, 1.5))),
        ("logit_bias", {}, "logit_bias", ()),
        ("stop", "end", "stop", ("end",)),
        ("stop", ["a", "b"], "stop", ("a", "b")),
        ("stop", [], "stop", ()),
        ("max_tokens", 5, "max_tokens", 5),
        ("max_completion_tokens", 5, "max_tokens", 5),
        ("ignore_eos", True, "ignore_eos", True),
    ]:
        with case(parameter=parameter, value=value, field=field, expected=expected):
            plain = {name: getattr(SamplingParams(), name) for name in SamplingParams.__dataclass_fields__}
            assert sampling(**{parameter: value}) == SamplingParams(**(plain | {field: expected}))


def test_null_means_absent_for_every_parameter_but_the_two_that_are_required() -> None:
    optional = [name for name in ChatCompletionRequest.__struct_fields__ if name not in ("model", "messages")]
    assert read(body(**dict.fromkeys(optional)))[1] == read(body())[1]
    for required in ("model", "messages"):
        assert refusal(body(**{required: None})).param == required


def function(name: str, parameters: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_missing_required_fields_are_named(missing: str) -> None:
    error = refusal({name: value for name, value in body().items() if name != missing})
    assert (error.param, error.message) == (missing, f"Missing required parameter: '{missing}'.")


def test_a_wrong_value_is_refused_by_name() -> None:
    for parameters, param in [
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [None]}, "messages[0]"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 10**400}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": 2**63}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repetition_penalty"),
        ({"logit_bias": {"50": 101}}, "logit_bias"),
        ({"logit_bias": {"fifty": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {str(10**30): 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": [5]}, "stop[0]"),
        ({"metadata": {"k": 1}}, "metadata[...]"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": False, "stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": 10**400}, "n"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"response_format": "text"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": schema_format({"type": "objec"})}, "response_format"),
        ({"tools": {}}, "tools"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [function("")]}, "tools[0]"),
        ({"tools": [function("a b")]}, "tools[0]"),
        ({"tools": [function("f"), function("f")]}, "tools[1]"),
        ({"tools": [function(f"f{number}") for number in range(129)]}, "tools"),
        ({"tools": [function("f", {"type": "object", "not": {}}, strict=True)]}, "tools[0].parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "maybe", "tools": [function("f")]}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [function("f")]}, "tool_choice"),
    ]:
        with case(parameters=parameters, param=param):
            error = refusal(body(**parameters))
            assert error.param == param
            assert f"'{param}'" in error.message
            assert isinstance(error, InvalidRequest)


def test_unsupported_parameters_are_refused_by_name_and_neutral_values_pass() -> None:
    for parameter, asking, neutral in [
        ("modalities", (["text", "audio"], ["audio"]), (["text"],)),
        ("audio", ({"voice": "x", "format": "wav"},), ()),
        ("verbosity", ("low", "high"), ("medium",)),
        ("store", (True,), (False,)),
        ("service_tier", ("flex", "priority"), ("auto", "default")),
        ("web_search_options", ({},), ()),
        ("moderation", ({"model": "x"},), ()),
    ]:
        with case(parameter=parameter, asking=asking, neutral=neutral):
            for value in asking:
                error = refusal(body(**{parameter: value}))
                assert isinstance(error, Unsupported), value
                assert error.param == parameter
                assert f"'{parameter}'" in error.message
            for value in (None, *neutral):
                assert read(body(**{parameter: value}))[1] == read(body())[1]


def test_tools_are_read_with_their_schemas_as_they_came() -> None:
    parameters = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"not": {}}}}
    _, chat = read(body(tools=[function("f", parameters, description="does it"), function("g", strict=True)]))
    assert chat.tools == (
        Tool(name="f", description="does it", parameters=parameters),
        Tool(name="g", strict=True),
    )
    assert list(chat.tools[0].parameters["properties"]) == ["z", "a"], "models read keys in their order"
    assert chat.tool_choice == ToolChoice(mode="auto")
    assert chat.callable_tools == chat.tools
    assert chat.parallel_tool_calls is True
    assert read(body(parallel_tool_calls=False))[1].parallel_tool_calls is False


@pytest.mark.parametrize(
    ("choice", "expected", "callable_names"),
    [
        ("auto", ToolChoice(mode="auto"), ["f", "g"]),
        ("none", ToolChoice(mode="none"), []),
        ("required", ToolChoice(mode="required"), ["f", "g"]),
        (
            {"type": "function", "function": {"name": "g"}},
            ToolChoice(mode="required", names=frozenset({"g"})),
            ["g"],
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
            ToolChoice(mode="auto", names=frozenset({"f"})),
            ["f"],
        ),
    ],
)
def test_every_form_of_a_choice_of_tools(choice: Any, expected: ToolChoice, callable_names: list[str]) -> None:
    _, chat = read(body(tools=[function("f"), function("g")], tool_choice=choice))
    assert chat.tool_choice == expected
    assert [tool.name for tool in chat.callable_tools] == callable_names


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0]"),
        ({"tools": [function("f")], "tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice"),
    ],
)
def test_custom_tools_are_refused(parameters: dict[str, Any], param: str) -> None:
    error = refusal(body(**parameters))
    assert isinstance(error, Unsupported)
    assert error.param == param


def test_every_response_format_is_read() -> None:
    def output(value: dict[str, Any]) -> OutputFormat:
        return read(body(response_format=value))[1].output

    schema = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
    assert output({"type": "text"}) == OutputFormat()
    assert output({"type": "json_object"}) == OutputFormat(kind="json_object")
    assert output(schema_format(schema)) == OutputFormat(kind="json_schema", schema=schema)


def test_the_keyword_of_a_schema_that_is_not_supported_is_named() -> None:
    error = refusal(body(response_format=schema_format({"type": "object", "unevaluatedProperties": False})))
    assert "unevaluatedProperties" in error.message


def test_choices_and_logprobs_are_read() -> None:
    assert read(body(n=3))[1].choices == 3
    assert read(body(logprobs=True))[1].logprobs == 0
    assert read(body(logprobs=True, top_logprobs=20))[1].logprobs == 20
    assert read(body(logprobs=False))[1].logprobs is None
    assert read(body(reasoning_effort="low"))[1].reasoning_effort == "low"


def test_a_prediction_is_a_text_or_parts_of_text() -> None:
    assert read(body())[1].prediction == ""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for content, text in (("ab\n", "ab\n"), (parts, "ab"), ("", "")):
        with case(content=content):
            assert read(body(prediction={"type": "content", "content": content}))[1].prediction == text
    for prediction, param in (
        ({"type": "content", "content": 1}, "prediction.content"),
        ({"type": "other", "content": "x"}, "prediction"),
        ({"type": "content", "content": [{"type": "image_url", "image_url": {"url": "/u"}}]}, "prediction.content"),
    ):
        with case(prediction=prediction):
            assert (refusal(body(prediction=prediction)).param or "").startswith(param)


def test_a_session_may_have_a_name() -> None:
    assert read(body(prompt_cache_key="session"))[1].cache_key == "session"
    assert read(body(prompt_cache_key=None))[1].cache_key == ""
    assert refusal(body(prompt_cache_key="k" * 513)).param == "prompt_cache_key"
    assert refusal(body(prompt_cache_key=5)).param == "prompt_cache_key"


def test_the_variables_of_the_template_are_read_and_bounded() -> None:
    assert read(body(chat_template_kwargs={"enable_thinking": False}))[1].template_variables == {
        "enable_thinking": False
    }
    deep: Any = {}
    for _ in range(8):
        deep = {"a": deep}
    for variables in ({"messages": []}, {"a b": 1}, {"": 1}, {"x": "y" * 16384}, deep, {f"v{n}": 1 for n in range(33)}):
        with case(variables=variables):
            assert refusal(body(chat_template_kwargs=variables)).param == "chat_template_kwargs"
    assert refusal(body(chat_template_kwargs=5)).param == "chat_template_kwargs"


# --- deprecated functions


def test_functions_are_tools_of_which_one_may_be_called() -> None:
    functions = [{"name": "f", "parameters": {"type": "object"}}, {"name": "g", "description": "d"}]
    request, chat = read(body(functions=functions))
    assert request.legacy
    assert [tool.name for tool in chat.tools] == ["f", "g"]
    assert (chat.tool_choice, chat.parallel_tool_calls) == (ToolChoice(), False)
    assert read(body(functions=functions, function_call="none"))[1].tool_choice == ToolChoice(mode="none")
    chosen = read(body(functions=functions, function_call={"name": "g"}))[1].tool_choice
    assert chosen == ToolChoice(mode="required", names=frozenset({"g"}))
    assert not read(body(functions=[], function_call="auto"))[0].legacy
    assert read(body(function_call="none", tools=[function("f")]))[1].tool_choice == ToolChoice()


def test_the_name_of_a_wrong_function_is_the_callers() -> None:
    one = {"name": "f", "parameters": {"type": "object", "x": "y" * 2**18}}
    for parameters, param in [
        ({"functions": [{"name": "f"}], "tools": [function("f")]}, "functions"),
        ({"functions": [{"name": "f"}], "tool_choice": "auto"}, "functions"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
        ({"function_call": {"name": "g"}}, "function_call"),
        ({"function_call": {"name": "f"}, "tools": [function("f")]}, "functions"),
        ({"functions": [{"name": "a b"}]}, "functions[0]"),
        ({"functions": [one]}, "functions[0].parameters"),
        ({"functions": [{}]}, "functions[0].name"),
    ]:
        with case(parameters=parameters):
            error = refusal(body(**parameters))
            assert error.param == param
            assert f"'{param}'" in error.message


def test_calls_and_results_of_functions_belong_together() -> None:
    call = {"name": "f", "arguments": '{"a": 1}'}
    found = messages(
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "f", "content": "42"},
    )
    assert found[1].tool_calls == (ToolCall(id="call_1", name="f", arguments='{"a": 1}'),)
    assert found[2] == Message(role="tool", name="f", content="42", tool_call_id="call_1")


def test_what_an_answer_had_can_be_sent_back() -> None:
    """Clients send back null and unknown fields of messages, parts and tools."""
    nothing = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "tool_calls", "name", "new"))
    assert messages({"role": "assistant", "content": None, **nothing}) == (Message(role="assistant", content=""),)
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}, "new": None}
    assert messages({"role": "user", "content": [part, {"type": "text", "text": None}]})[0].content == "a"
    given = {"id": "c", "type": None, "index": 0, "function": {"name": "f", "arguments": None, "new": 1}, "new": 1}
    (message,) = messages({"role": "assistant", "content": "", "tool_calls": [given]})
    assert message.tool_calls == (ToolCall(id="c", name="f", arguments=""),)
    tool = {"type": "function", "new": 1, "function": {"name": "f", "strict": None, "description": None, "new": 1}}
    assert read(body(tools=[tool]))[1].tools == (Tool(name="f"),)


def test_a_json_object_may_have_a_schema_as_in_llama_cpp() -> None:
    schema = {"type": "object", "properties": {"a": {}}}
    found = read(body(response_format={"type": "json_object", "schema": schema}))[1].output
    assert found == OutputFormat(kind="json_schema", schema=schema)


# These identify the caller or hint at caching, and change no answer. `metadata` means nothing without `store`, which
# is refused.
NO_EFFECT = {
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "user": "u",
}


def test_every_parameter_of_the_official_sdk_is_read_or_refused_or_without_effect() -> None:
    kinds = (CompletionCreateParamsBase, CompletionCreateParamsNonStreaming, CompletionCreateParamsStreaming)
    official = {name for kind in kinds for name in kind.__annotations__}
    assert official - set(ChatCompletionRequest.__struct_fields__) == set(NO_EFFECT)


def test_parameters_without_effect_and_unknown_ones_are_accepted() -> None:
    assert read(body(**NO_EFFECT, metadata={"a": "b"}, invented_next_year={"deep": [1]}))[1] == read(body())[1]


@pytest.mark.parametrize(
    ("options", "usage"),
    [(None, False), ({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True)],
)
def test_a_stream_may_ask_for_usage(options: dict[str, Any] | None, usage: bool) -> None:
    asked, _ = read(body(stream=True, stream_options=options))
    assert asked.stream is True
    assert bool(asked.stream_options and asked.stream_options.include_usage) is usage


# --- reading: messages


def test_every_role_is_read() -> None:
    assert messages(
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b"},
        {"role": "user", "content": "c", "name": "ann"},
        {"role": "assistant", "content": "d"},
        {"role": "tool", "content": "e", "tool_call_id": "c1"},
    ) == (
        Message(role="system", content="a"),
        Message(role="developer", content="b"),
        Message(role="user", content="c", name="ann"),
        Message(role="assistant", content="d"),
        Message(role="tool", content="e", tool_call_id="c1"),
    )


def test_an_assistants_tool_calls_are_read_with_their_arguments_as_text() -> None:
    function = {"name": "f", "arguments": '{ "a" :1}'}
    (message,) = messages(
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    )
    assert message == Message(
        role="assistant", content="", tool_calls=(ToolCall(id="c1", name="f", arguments='{ "a" :1}'),)
    )


def test_parts_of_text_are_joined_and_a_refusal_is_what_the_assistant_said() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": " b"}]
    said = [{"type": "refusal", "refusal": "no"}]
    assert [
        message.content
        for message in messages(
            {"role": "user", "content": parts},
            {"role": "assistant", "content": said},
            {"role": "assistant", "content": None, "refusal": "never"},
        )
    ] == ["a b", "no", "never"]


def test_an_answer_can_be_sent_back_as_it_came() -> None:
    """Clients append `choices[0].message` to the conversation, null fields included."""
    answer = whole("Hi!")["choices"][0]["message"]
    assert messages(*HELLO, answer)[1] == Message(role="assistant", content="Hi!")
    sdk = ChatCompletion.model_validate(whole("Hi!")).choices[0].message
    assert messages(*HELLO, sdk.model_dump())[1] == Message(role="assistant", content="Hi!")


def test_an_empty_text_is_a_text() -> None:
    assert messages({"role": "user", "content": ""}) == (Message(role="user", content=""),)


def test_a_wrong_message_is_refused_with_its_place() -> None:
    for message, param in [
        ({"content": "x"}, "messages[0].role"),
        ({"role": "king", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": {"type": "text", "text": "x"}}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "hologram"}]}, "messages[0].content[0].type"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
    ]:
        with case(message=message, param=param):
            error = refusal(body(messages=[message]))
            assert isinstance(error, InvalidRequest)
            assert error.param == param
            assert f"'{param}'" in error.message


def test_pictures_keep_their_place_in_the_text() -> None:
    assert ImageURL.__annotations__.keys() == set(ImageUrl.__struct_fields__)
    data, link = "data:image/png;base64,aGk=", "https://example.org/x.png"

    def image(url: str, **more: str) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": url, **more}}

    text = {"type": "text", "text": "ab"}
    found = messages({"role": "user", "content": [text, image(data, detail="low"), text, image(link), image(data)]})
    assert found[0].content == "abab"
    assert found[0].pictures == (
        Picture(at=2, param="messages[0].content[1].image_url.url", url=data, detail="low"),
        Picture(at=4, param="messages[0].content[3].image_url.url", url=link),
        Picture(at=4, param="messages[0].content[4].image_url.url", url=data),
    )
    for content, param in (
        ([image("x")], "messages[0].content[0].image_url.url"),
        ([image("")], "messages[0].content[0].image_url.url"),
        ([image("data:image/png,x")], "messages[0].content[0].image_url.url"),
        ([image(f"https://{'a' * 9000}")], "messages[0].content[0].image_url.url"),
        ([image(data, detail="huge")], "messages[0].content[0].image_url.detail"),
        ([{"type": "image_url"}], "messages[0].content[0].image_url"),
        ([image(data)] * 101, "messages"),
    ):
        with case(param=param):
            error = refusal(body(messages=[{"role": "user", "content": content}]))
            assert (error.param, f"'{param}'" in error.message) == (param, True)
    error = refusal(body(messages=[{"role": "system", "content": [image(data)]}]))
    assert error.param == "messages[0].content[0].image_url.url"
    assert "'user' and 'tool'" in error.message


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}},
    ],
)
def test_content_that_is_no_text_is_refused_by_its_type_and_place(part: dict[str, Any]) -> None:
    error = refusal(body(messages=[*HELLO, {"role": "user", "content": [{"type": "text", "text": "x"}, part]}]))
    assert isinstance(error, Unsupported)
    assert error.param == "messages[1].content[1]"
    assert f"'{part['type']}'" in error.message


@pytest.mark.parametrize(
    "data",
    [
        b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"m","messages":' + b"[" * 100_000,
        b'{"model":"m","messages":[],"tools":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model":"m","messages":[],"response_format":' + b'{"a":' * 100_000,
    ],
)
def test_hostile_bodies_are_refused(data: bytes) -> None:
    assert refusal(data).code == "INVALID_REQUEST"
