"""Ollama's official Python package, unmodified, against the real stack with the real models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import ollama
import pytest

from tests.minilm import ENCODER, SIZE
from tests.stack import ALIAS, MODEL, Stack

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
LIKELIEST = {"temperature": 0}
CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": CITY}}
CALLED = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}


@pytest.fixture
def client(stack: Stack) -> Iterator[ollama.Client]:
    with ollama.Client(f"http://127.0.0.1:{stack.port}") as client:
        yield client


def test_chat(client: ollama.Client) -> None:
    for name in (MODEL, f"{MODEL}:latest", ALIAS, f"{ALIAS}:latest"):
        response = client.chat(name, QUESTION, options={**LIKELIEST, "num_predict": 8})
        assert (response.model, response.message.role, response.done) == (name, "assistant", True)
        assert "Paris" in (response.message.content or "")
    assert response.done_reason in ("stop", "length")
    assert response.prompt_eval_count and response.eval_count
    assert response.total_duration and response.load_duration
    assert response.total_duration >= (response.prompt_eval_duration or 0) + (response.eval_duration or 0)
    assert client.chat(MODEL, QUESTION, options={"num_predict": 2}).done_reason == "length"


def test_a_stream_equals_the_whole(client: ollama.Client) -> None:
    options = {"seed": 1, "num_predict": 12, "stop": ["."]}  # a seed makes answers equal
    whole = client.chat(MODEL, QUESTION, options=options)
    *parts, last = client.chat(MODEL, QUESTION, options=options, stream=True)
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert not any(part.done for part in parts)
    assert (last.done, last.done_reason, last.eval_count) == (True, whole.done_reason, whole.eval_count)


def test_generate(client: ollama.Client) -> None:
    answer = client.generate(MODEL, "What is the capital of France?", system="Be brief.", options=LIKELIEST)
    assert "Paris" in (answer.response or "")
    raw = client.generate(MODEL, "The capital of France is", raw=True, options={**LIKELIEST, "num_predict": 4})
    assert "Paris" in (raw.response or "")
    assert (raw.prompt_eval_count or 0) < (answer.prompt_eval_count or 0), "a raw prompt has no template"
    *parts, last = client.generate(MODEL, "Hi", stream=True, options={"num_predict": 2}, logprobs=True, top_logprobs=1)
    assert last.done_reason == "length"
    assert [len(each.top_logprobs or ()) for part in parts for each in part.logprobs or ()] == [1, 1]


def test_formats(client: ollama.Client) -> None:
    options = {**LIKELIEST, "num_predict": 60}
    response = client.chat(MODEL, QUESTION, format=CITY, options=options)
    assert json.loads(response.message.content or "")["city"] in ("Paris", "Rome")
    answer = client.generate(MODEL, "A city?", format=CITY, options=options)
    assert json.loads(answer.response or "")["city"] in ("Paris", "Rome")


def test_calls_make_round_trips(client: ollama.Client) -> None:
    """The small model calls no tool unless it must: what it reads is compared."""
    turns: list[Any] = [*QUESTION, {"role": "assistant", "content": "", "tool_calls": [CALLED]}]
    turns.append({"role": "tool", "content": "Sunny.", "tool_name": "get_weather"})
    counts = []
    for upto in (1, 2, 3):
        response = client.chat(MODEL, turns[:upto], tools=[WEATHER], options={"num_predict": 1})
        counts.append(response.prompt_eval_count or 0)
    assert counts == sorted(set(counts)), "the model reads calls and results"
    assert counts[0] > (client.chat(MODEL, QUESTION, options={"num_predict": 1}).prompt_eval_count or 0)


def test_embed(client: ollama.Client) -> None:
    texts = ["A man is eating food.", "Somebody eats a meal.", "The stock market fell sharply."]
    response = client.embed(ENCODER, texts, truncate=True)
    vectors = np.array(response.embeddings)
    assert vectors.shape == (3, SIZE)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
    assert response.prompt_eval_count and response.total_duration and response.load_duration
    assert np.array(client.embed(f"{ENCODER}:latest", texts[0], dimensions=16).embeddings).shape == (1, 16)
    assert np.allclose(client.embeddings(ENCODER, texts[0]).embedding, vectors[0], atol=1e-5)
    assert client.embed(ENCODER, []).embeddings == []
    long = client.embed(ENCODER, f"{texts[0]} {'word ' * 1000}")
    assert 0 < (long.prompt_eval_count or 0) < 1000, "it is cut at its end"
    with pytest.raises(ollama.ResponseError, match="not truncated") as caught:
        client.embed(ENCODER, ["a", "word " * 1000], truncate=False)
    assert caught.value.status_code == 400


def test_models(stack: Stack, client: ollama.Client) -> None:
    client.chat(MODEL, [])
    listed = {model.model for model in client.list().models}
    assert {f"{MODEL}:latest", f"{ALIAS}:latest", f"{ENCODER}:latest"} <= listed
    stack.until(lambda: f"{MODEL}:latest" in {model.model for model in client.ps().models})
    shown = client.show(f"{MODEL}:latest")
    assert shown.capabilities == ["completion", "tools"]
    assert (shown.modelinfo or {})["llama.context_length"] > 0
    assert client.show(ENCODER).capabilities == ["embedding"]


def test_errors(client: ollama.Client) -> None:
    def status(call: Any) -> int:
        with pytest.raises(ollama.ResponseError) as caught:
            call()
        assert not caught.value.error.startswith("{"), "the client has read the message"
        return caught.value.status_code

    assert status(lambda: client.chat("nobody", QUESTION)) == 404
    assert status(lambda: list(client.chat("nobody", QUESTION, stream=True))) == 404
    assert status(lambda: client.show("nobody")) == 404
    assert status(lambda: client.chat(MODEL, QUESTION, think=True)) == 400
    assert status(lambda: client.generate(MODEL, "a", suffix="b")) == 400
    assert status(lambda: client.generate(MODEL, "a", template="{{ .Prompt }}")) == 400
    assert status(lambda: client.generate(ENCODER, "a")) == 400
    assert status(lambda: client.chat(MODEL, [{"role": "user", "content": "x" * 400_000}])) == 400
    assert status(lambda: client.copy(MODEL, "copy")) == 404
