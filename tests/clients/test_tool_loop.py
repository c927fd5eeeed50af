"""The tool loop of Anthropic's official Python SDK: the model thinks, calls a tool unasked, and reads its result."""

from __future__ import annotations

import time
from collections.abc import Iterator

import anthropic
import openai
import pytest
from anthropic import beta_tool
from anthropic.types.beta import BetaMessage

from services.text.engine.kv_cells import BLOCK, CACHED_SHARE, DEFAULT_CONTEXT
from tests.clients.scripted_model import write_scripted_model
from tests.stack import POLL_SECONDS, Stack

MODEL, ANSWER, THOUGHT = "scripted", "It is sunny in Paris.", "The weather must be looked up."
CONTEXT = DEFAULT_CONTEXT + BLOCK  # a long context: its prefix cache keeps more than a share
LONG = "word " * (CONTEXT // CACHED_SHARE + 100)  # tokens, as those of a coding agent's instructions
READY_SECONDS = 60

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scripted(stack: Stack) -> Iterator[str]:
    """A model that thinks, calls `get_weather`, and then answers."""
    path = stack.home / "models" / "scripted.gguf"
    path.parent.mkdir(exist_ok=True)
    write_scripted_model(path, "get_weather", {"city": "Paris"}, ANSWER, thought=THOUGHT)
    with openai.OpenAI(base_url=stack.base_url, api_key="unused", max_retries=0) as client:
        body = {"id": MODEL, "source": path.as_uri(), "format": "gguf", "engine": {"context_tokens": CONTEXT}}
        client.post("/models", body=body, cast_to=object)
        deadline = time.monotonic() + READY_SECONDS
        while MODEL not in [model.id for model in client.models.list()]:
            assert time.monotonic() < deadline, stack.output()
            time.sleep(POLL_SECONDS)
        yield MODEL
        client.models.delete(MODEL)


def test_the_sdk_runs_a_tool(stack: Stack, scripted: str) -> None:
    asked = []

    @beta_tool
    def get_weather(city: str) -> str:
        """Returns the weather.

        Args:
            city: its name.
        """
        asked.append(city)
        return "sunny"

    url = stack.base_url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0) as client:
        question = {"role": "user", "content": "How is the weather in Paris?"}
        asking = {"model": scripted, "max_tokens": 64, "system": LONG, "tools": [get_weather], "messages": [question]}
        call, answer = list(client.beta.messages.tool_runner(**asking, thinking={"type": "adaptive"}))
        unthinking, answered = list(client.beta.messages.tool_runner(**asking))
        streams = client.beta.messages.tool_runner(**asking, thinking={"type": "adaptive"}, stream=True)
        streamed = [stream.get_final_message() for stream in streams]
    assert asked == ["Paris"] * 3
    assert [block.type for block in call.content] == ["thinking", "tool_use"]
    assert call.content[0].thinking == THOUGHT
    assert call.stop_reason == "tool_use"
    assert [block.type for block in unthinking.content] == ["tool_use"]
    (text,) = answer.content
    assert (text.type, text.text) == ("text", ANSWER)
    assert [block.type for message in streamed for block in message.content] == ["thinking", "tool_use", "text"]
    thought = call.usage.output_tokens_details.thinking_tokens
    assert 0 < thought < call.usage.output_tokens
    assert prompt_tokens(answer) >= prompt_tokens(answered) + thought, (
        "the thought is sent back, and the model reads it"
    )
    # The second turn reads the first one's prompt from the cache.
    first = prompt_tokens(call)
    assert first > CONTEXT // CACHED_SHARE
    assert first - 2 * BLOCK < (answer.usage.cache_read_input_tokens or 0) <= first


def prompt_tokens(message: BetaMessage) -> int:
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
