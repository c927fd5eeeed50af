"""`prompt_cache_key` through the gateway: in a small cache that others fill, a session with a key keeps its prefix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from stack import MODEL, Stack, running_stack

pytestmark = pytest.mark.slow

HISTORY = "Here is a long conversation that goes on for some time, and is asked about again and again. " * 4
OTHERS = 30


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = {"ALLM_KV_TOKENS": "2048", "ALLM_CONTEXT_TOKENS": "1024", "ALLM_MAX_SEQUENCES": "4"}
    with running_stack(tmp_path_factory.mktemp("small-cache"), **settings) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(small: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=small.base_url, api_key="none") as found:
        yield found


def chatted(client: openai.OpenAI, text: str, **asked: Any) -> int:
    messages: Any = [{"role": "user", "content": text}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1, **asked)
    assert answer.usage
    assert answer.usage.prompt_tokens_details
    return answer.usage.prompt_tokens_details.cached_tokens or 0


def responded(client: openai.OpenAI, text: str, **asked: Any) -> int:
    answer = client.responses.create(model=MODEL, input=text, max_output_tokens=1, store=False, **asked)
    assert answer.usage
    return answer.usage.input_tokens_details.cached_tokens


@pytest.mark.parametrize("ask", [chatted, responded])
def test_cached_tokens_of_a_session_show_in_usage(client: openai.OpenAI, ask: Any) -> None:
    name = ask.__name__
    ask(client, f"With a key, {name}. {HISTORY}", prompt_cache_key=name)
    ask(client, f"Without, {name}. {HISTORY}")
    for number in range(OTHERS):
        ask(
            client, f"{number} is a number, and {name} is a word; they have nothing to do with each other, or with you."
        )
    without = ask(client, f"Without, {name}. {HISTORY} What comes next?")
    with_key = ask(client, f"With a key, {name}. {HISTORY} What comes next?", prompt_cache_key=name)
    assert with_key >= without + 64
