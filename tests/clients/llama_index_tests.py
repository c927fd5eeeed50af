"""LlamaIndex's client for OpenAI-compatible servers, unmodified, against a running allm. Run by test_llama_index.py.

It needs an older `openai` than the other tests, so it has a separate environment with only LlamaIndex, and the tests
use unittest. The model is small, so tool calls are forced.
"""

from __future__ import annotations

import os
import unittest
from typing import Literal

import openai
from llama_index.core.llms import ChatMessage, ChatResponse
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

QUESTION = ChatMessage(role="user", content="What is the weather in Paris?")


class Weather(BaseModel):
    """The arguments of a request for weather."""

    city: Literal["Paris", "London"]
    days: int = Field(ge=1, le=9)


def get_weather(city: str, days: int) -> str:
    """Weather of a city."""
    return f"22 degrees in {city} for {days} days"


TOOL = FunctionTool.from_defaults(get_weather, fn_schema=Weather)


def client(model: str = os.environ["ALLM_MODEL"]) -> OpenAILike:
    """Returns a client configured as LlamaIndex's users configure it for their own server."""
    return OpenAILike(
        model=model,
        api_base=os.environ["ALLM_BASE_URL"],
        api_key="unused",
        is_chat_model=True,
        is_function_calling_model=True,
        strict=True,
        temperature=0,
        max_tokens=100,
        max_retries=0,
    )


class Conversation(unittest.TestCase):
    """A conversation with a tool, and answers that follow a schema."""

    def setUp(self) -> None:
        self.llm = client()

    def ask(self, history: list[ChatMessage], choice: str, *, stream: bool) -> ChatResponse:
        """Returns the model's next message, assembled by LlamaIndex if it was streamed."""
        if not stream:
            return self.llm.chat_with_tools([TOOL], chat_history=history, tool_choice=choice)
        pieces = list(self.llm.stream_chat_with_tools([TOOL], chat_history=history, tool_choice=choice))
        self.assertGreater(len(pieces), 3)
        return pieces[-1]

    def call_result(self, response: ChatResponse) -> ChatMessage:
        """Returns the result of the one call in a response, made with the arguments that LlamaIndex has parsed."""
        (call,) = self.llm.get_tool_calls_from_response(response)
        self.assertEqual(call.tool_name, "get_weather")
        self.assertTrue(call.tool_id)
        weather = Weather.model_validate(call.tool_kwargs)
        result = str(TOOL.call(**call.tool_kwargs))
        self.assertEqual(result, f"22 degrees in {weather.city} for {weather.days} days")
        return ChatMessage(role="tool", content=result, additional_kwargs={"tool_call_id": call.tool_id})

    def hold(self, *, stream: bool) -> None:
        history = [QUESTION]
        for choice, next_question in (("get_weather", "And in London?"), ("required", "Which is warmer?")):
            asked = self.ask(history, choice, stream=stream)
            self.assertFalse(asked.message.content)
            history += [asked.message, self.call_result(asked)]
            answer = self.ask(history, "none", stream=stream)
            self.assertTrue(answer.message.content)
            self.assertEqual(self.llm.get_tool_calls_from_response(answer, error_on_no_tool_call=False), [])
            history += [answer.message, ChatMessage(role="user", content=next_question)]

    def test_whole(self) -> None:
        self.hold(stream=False)

    def test_streamed(self) -> None:
        self.hold(stream=True)

    def test_the_tool_is_called_for_us(self) -> None:
        done = self.llm.predict_and_call([TOOL], chat_history=[QUESTION], tool_choice="get_weather")
        (output,) = done.sources
        self.assertFalse(output.is_error)
        self.assertIn("22 degrees in", done.response)

    def test_structured_output(self) -> None:
        self.assertIsInstance(self.llm.as_structured_llm(Weather).chat([QUESTION]).raw, Weather)

    def test_unknown_model_is_reported_as_such(self) -> None:
        with self.assertRaisesRegex(openai.NotFoundError, "no/such-model"):
            client("no/such-model").chat([QUESTION])


if __name__ == "__main__":
    unittest.main(verbosity=2)
