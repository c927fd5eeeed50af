"""Ollama's requests: every parameter of the official package is read, refused by name, or without effect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.api import httpbody_pb2
from ollama._types import ChatRequest as SdkChat
from ollama._types import EmbeddingsRequest as SdkEmbedPrompt
from ollama._types import EmbedRequest as SdkEmbed
from ollama._types import GenerateRequest as SdkGenerate

from services.errors import AllmError, InvalidRequest, Unsupported
from services.text.api.completions import CompletionRequest
from services.text.api.ollama import ollama_request
from services.text.api.ollama.ollama_request import read_chat, read_embed, read_embed_prompt, read_generate
from services.text.conversation import ChatRequest, Message, OutputFormat, Picture, Tool, ToolCall
from tests.case import case
from tests.text.checked_request import checked_request

HELLO = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
CALL = {"function": {"name": "f", "arguments": {"a": 1}}}


def raw(**parameters: Any) -> httpbody_pb2.HttpBody:
    return httpbody_pb2.HttpBody(data=json.dumps({"model": "m", **parameters}).encode())


def chat(**parameters: Any) -> ChatRequest:
    request = read_chat(raw(**{"messages": [HELLO], **parameters}))[1]
    assert request
    return request


def generate(**parameters: Any) -> Any:
    return read_generate(raw(**{"prompt": "hello", **parameters}))[1]


def refusal(reader: Any, **parameters: Any) -> AllmError:
    with pytest.raises((InvalidRequest, Unsupported)) as caught:
        request = reader(raw(**parameters))[1]
        if isinstance(request, ChatRequest):
            checked_request(request)
    assert caught.value.http_status == 400
    return caught.value


def test_every_parameter_of_the_sdk_is_known() -> None:
    """Those for pictures are named as unknown."""
    for sdk, ours, more in (
        (SdkChat, ollama_request.ChatBody, set()),
        (SdkGenerate, ollama_request.GenerateBody, {"width", "height", "steps"}),
        (SdkEmbed, ollama_request.EmbedBody, set()),
        (SdkEmbedPrompt, ollama_request.EmbedPromptBody, set()),
    ):
        with case(sdk=sdk.__name__):
            assert set(sdk.model_fields) - set(ours.__struct_fields__) == more


def test_a_conversation() -> None:
    given = [{"role": "system", "content": "s"}, HELLO, {"role": "assistant", "content": "a", "thinking": "t"}, HELLO]
    assert chat(messages=given).messages == (
        Message(role="system", content="s"),
        Message(role="user", content="hello"),
        Message(role="assistant", content="a", reasoning="t"),
        Message(role="user", content="hello"),
    )


def test_tools() -> None:
    assert chat(tools=[TOOL]).tools == (Tool(name="f", description="d", parameters=SCHEMA),)
    assert chat(tools=[{"function": {"name": "f"}}]).tools == (Tool(name="f"),)


def test_results_belong_to_calls_by_id_by_name_or_in_order() -> None:
    """Home Assistant sends neither ids nor names."""
    calls: list[Any] = [{"function": {"name": name, "arguments": {}}} for name in ("f", "g", "f")]
    results = [{"role": "tool", "content": str(at)} for at in range(3)]
    assistant = {"role": "assistant", "tool_calls": calls}

    def linked(*results: dict[str, Any]) -> list[tuple[str, str]]:
        found = chat(messages=[HELLO, assistant, *results]).messages
        ids = {call.id: at for at, call in enumerate(found[1].tool_calls)}
        assert len(ids) == 3
        return [(message.name, str(ids.get(message.tool_call_id))) for message in found[2:]]

    assert linked(*results) == [("f", "0"), ("g", "1"), ("f", "2")]
    named = [{**result, "tool_name": name} for result, name in zip(results, ("g", "f", "f"), strict=True)]
    assert linked(*named) == [("g", "1"), ("f", "0"), ("f", "2")]
    assert linked({**results[0], "tool_name": "other"}) == [("other", "None")]
    kept = {"id": "x", **CALL}
    messages = chat(
        messages=[{"role": "assistant", "tool_calls": [kept]}, {**results[0], "tool_call_id": "x"}]
    ).messages
    assert messages[0].tool_calls == (ToolCall(id="x", name="f", arguments='{"a": 1}'),)
    assert (messages[1].tool_call_id, messages[1].name) == ("x", "f")


def test_arguments_may_be_text() -> None:
    told = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a":1}'}}]}
    assert chat(messages=[told]).messages[0].tool_calls[0].arguments == '{"a":1}'


def test_a_request_without_messages_only_loads() -> None:
    given: tuple[tuple[Any, list[dict[str, Any]]], ...] = (
        (read_chat, [{}, {"messages": []}, {"messages": None}]),
        (read_generate, [{}, {"prompt": ""}, {"raw": True}, {"system": "s"}, {"suffix": "s"}]),
        (read_embed, [{}, {"input": ""}, {"input": []}]),
    )
    for reader, bodies in given:
        for body in bodies:
            with case(reader=reader.__name__, body=body):
                assert reader(raw(**body))[1] is None
    assert read_embed_prompt(raw())[1] is None


def test_a_prompt_is_a_conversation_unless_it_is_raw() -> None:
    assert generate(system="s").messages == (Message(role="system", content="s"), Message(role="user", content="hello"))
    text = generate(raw=True, format="json", logprobs=True, top_logprobs=2)
    assert isinstance(text, CompletionRequest)
    assert (text.prompts, text.output, text.logprobs) == (("hello",), OutputFormat(kind="json_object"), 2)
    filled = generate(suffix="end")
    assert isinstance(filled, CompletionRequest)
    assert filled.suffix == "end"


def test_an_answer_may_end_with_the_context() -> None:
    for request in (chat(), generate(), generate(raw=True)):
        assert not request.room_required


def test_thinking_is_required_unless_it_is_switched_off() -> None:
    for think, effort, required in (
        (None, "", True),
        (True, "medium", True),
        ("low", "low", True),
        (False, "none", False),
    ):
        request = chat(think=think)
        assert (request.reasoning_effort, request.effort_required) == (effort, required)


def test_inputs() -> None:
    one = read_embed(raw(input="a", dimensions=0))[1]
    two = read_embed(raw(input=["a", "b"], dimensions=3, truncate=True, options={"num_ctx": 1}))[1]
    assert one and two
    assert (one.inputs, one.dimensions, two.inputs, two.dimensions) == (("a",), None, ("a", "b"), 3)
    kept = read_embed(raw(input="a", truncate=False))[1]
    assert kept
    assert (one.truncate, two.truncate, kept.truncate) == (True, True, False)
    assert refusal(read_embed, input=["a", ""]).param == "input[1]"
    assert refusal(read_embed, input=[1]).param == "input[0]"


def test_pictures_come_before_the_text() -> None:
    (message,) = chat(messages=[{**HELLO, "images": ["aGk=", "data:image/png;base64,aGk="]}]).messages
    assert message.content == "hello"
    assert message.pictures == (
        Picture(at=0, param="messages[0].images[0]", url="data:;base64,aGk="),
        Picture(at=0, param="messages[0].images[1]", url="data:image/png;base64,aGk="),
    )
    asked = generate(images=["aGk="], system="s")
    assert asked.messages[1].pictures == (Picture(at=0, param="images[0]", url="data:;base64,aGk="),)
    assert generate(images=["aGk="], prompt=None).messages[0].pictures, "a picture is a prompt"
    assert chat(messages=[{**HELLO, "images": []}]).messages[0].pictures == ()


@pytest.mark.parametrize(
    ("param", "parameters"),
    [
        ("model", {"model": ""}),
        ("messages[0].role", {"messages": [{"role": "robot", "content": "x"}]}),
        ("messages[0].images[1]", {"messages": [{"role": "assistant", "images": ["aa", "data:text/plain,x"]}]}),
        ("messages[0].images[0]", {"messages": [{"role": "assistant", "images": ["aa"]}]}),
        ("tools[0].function.name", {"tools": [{"type": "function", "function": {}}]}),
        ("tools[0].type", {"tools": [{"type": "web", "function": {"name": "f"}}]}),
        ("tools[0].function.parameters", {"tools": [{"function": {"name": "f", "parameters": {"a": "x" * 300_000}}}]}),
        ("template", {"template": "{{ .Prompt }}"}),
        ("format", {"format": "xml"}),
        ("format", {"format": {"type": "object", "x": "x" * 300_000}}),
        ("think", {"think": "deeply"}),
        ("top_logprobs", {"top_logprobs": 1}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
        ("options", {"options": []}),
        *(
            (f"options.{name}", {"options": {name: value}})
            for name, value in (("temperature", 3), ("top_p", 2), ("min_p", -1), ("stop", ["x" * 300]), ("seed", 2**64))
        ),
    ],
)
def test_refusals_name_the_parameter(param: str, parameters: dict[str, Any]) -> None:
    for reader, content in ((read_chat, {"messages": [HELLO]}), (read_generate, {"prompt": "p"})):
        if reader is read_generate and param.startswith(("messages", "tools")):
            continue
        with case(reader=reader.__name__):
            error = refusal(reader, **{**content, **parameters})
            assert error.param == param
            assert f"'{param}" in error.message


@pytest.mark.parametrize(
    ("param", "parameters"),
    [
        ("context", {"context": [1]}),
        ("images", {"raw": True, "images": ["aa"]}),
        ("images[0]", {"images": ["data:,"]}),
        ("system", {"raw": True, "system": "s"}),
        ("options.temperature", {"raw": True, "options": {"temperature": 3}}),
        ("top_logprobs", {"raw": True, "logprobs": True, "top_logprobs": 21}),
    ],
)
def test_refusals_of_a_prompt(param: str, parameters: dict[str, Any]) -> None:
    assert refusal(read_generate, prompt="p", **parameters).param == param
