"""The tool loop of Anthropic's official Python SDK: the model calls a tool on its own account, and reads its result."""

from __future__ import annotations

import time
from collections.abc import Iterator

import anthropic
import openai
import pytest
from anthropic import beta_tool

from services.text.engine.kv_cells import BLOCK, CACHED_SHARE, DEFAULT_CONTEXT
from tests.clients.scripted_model import write_scripted_model
from tests.stack import POLL_SECONDS, Stack

MODEL, ANSWER = "scripted", "It is sunny in Paris."
CONTEXT = DEFAULT_CONTEXT + BLOCK  # a long context: its prefix cache keeps more than a share
LONG = "word " * (CONTEXT // CACHED_SHARE + 100)  # tokens, as those of a coding agent's instructions
READY_SECONDS = 60

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scripted(stack: Stack) -> Iterator[str]:
    """A model that calls `get_weather` and then answers."""
    path = stack.home / "models" / "scripted.gguf"
    path.parent.mkdir(exist_ok=True)
    write_scripted_model(path, "get_weather", {"city": "Paris"}, ANSWER)
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
        runner = client.beta.messages.tool_runner(
            model=scripted, max_tokens=64, system=LONG, tools=[get_weather], messages=[question]
        )
        call, answer = list(runner)
    assert asked == ["Paris"]
    assert call.stop_reason == "tool_use"
    (text,) = answer.content
    assert (text.type, text.text) == ("text", ANSWER)
    # The second turn reads the first one's prompt from the cache.
    first = call.usage.input_tokens + (call.usage.cache_read_input_tokens or 0)
    assert first > CONTEXT // CACHED_SHARE
    assert first - 2 * BLOCK < (answer.usage.cache_read_input_tokens or 0) <= first
