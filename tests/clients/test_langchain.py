"""LangChain's OpenAI client, unmodified, against the real stack with the real model.

The model is small, so tool calls are forced; the arguments follow the tool's schema.
"""

from __future__ import annotations

from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from tests.stack import MODEL, Stack

pytestmark = pytest.mark.slow

QUESTION = HumanMessage("What is the weather in Paris?")


class Weather(BaseModel):
    """The arguments of a request for weather."""

    city: Literal["Paris", "London"]
    days: int = Field(ge=1, le=9)


@tool(args_schema=Weather)
def get_weather(city: str, days: int) -> str:
    """Weather of a city."""
    return f"22 degrees in {city} for {days} days"


@pytest.fixture
def llm(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> ChatOpenAI:
    for name in ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.delenv(name, raising=False)  # otherwise LangChain would send the conversation to LangSmith
    return ChatOpenAI(
        base_url=stack.base_url, api_key="unused", model=MODEL, temperature=0, max_tokens=100, max_retries=0
    )


def ask(llm: ChatOpenAI, messages: list[BaseMessage], *, stream: bool, **choice: Any) -> AIMessage:
    """Returns the model's next message, assembled by LangChain if it was streamed."""
    bound = llm.bind_tools([get_weather], strict=True, parallel_tool_calls=False, **choice)
    if not stream:
        answer = bound.invoke(messages)
        assert isinstance(answer, AIMessage)
        return answer
    chunks = list(bound.stream(messages))
    assert len(chunks) > 3
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert isinstance(whole, AIMessageChunk)
    return whole


def call_result(answer: AIMessage) -> ToolMessage:
    """Returns the result of the one call in an answer, made with the arguments that LangChain has parsed."""
    assert (answer.content, answer.invalid_tool_calls) == ("", [])
    assert answer.response_metadata["finish_reason"] == "tool_calls"
    (call,) = answer.tool_calls
    assert (call["name"], bool(call["id"])) == ("get_weather", True)
    city = Weather.model_validate(call["args"]).city
    result = get_weather.invoke(call)
    assert result.tool_call_id == call["id"]
    assert result.content.startswith(f"22 degrees in {city}")
    return result


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_with_a_tool(llm: ChatOpenAI, stream: bool) -> None:
    history: list[BaseMessage] = [QUESTION]
    for choice, next_question in (("get_weather", "And in London?"), ("any", "Which is warmer?")):
        asked = ask(llm, history, stream=stream, tool_choice=choice)
        history += [asked, call_result(asked)]
        answer = ask(llm, history, stream=stream, tool_choice="none")
        assert answer.content
        assert not answer.tool_calls
        history += [answer, HumanMessage(next_question)]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(llm: ChatOpenAI, method: Literal["json_schema", "function_calling"]) -> None:
    found = llm.with_structured_output(Weather, method=method, strict=True).invoke([QUESTION])
    assert isinstance(found, Weather)


# LangChain dumps the SDK's chunk, whose type has no field for the SDK's parsed object; pydantic warns about it.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
def test_streamed_structured_output(llm: ChatOpenAI) -> None:
    *_, last = llm.with_structured_output(Weather).stream([QUESTION])
    assert isinstance(last, Weather)
