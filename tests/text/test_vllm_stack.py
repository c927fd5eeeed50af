"""A model under the vllm runtime through the whole stack: gateway, service, and vLLM in the worker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import openai
import psutil
import pytest

from tests.demo_model import demo_safetensors
from tests.stack import Stack, environment, running_stack
from tests.text.engine.worker_session import VLLM_PYTHON

pytestmark = pytest.mark.slow
NAME = "smol-vllm"
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
OWN_CHECKS = ("chat-template", "likelihood", "tool-call", "unload")
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def vllm_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The stack with one model, registered for the vllm runtime."""
    folder = tmp_path_factory.mktemp("vllm")
    entry = {
        "id": NAME,
        "source": demo_safetensors().as_uri(),
        "format": "safetensors",
        "runtime": "vllm",
        "engine": {"context_tokens": 2048, "max_sequences": 4, "kv_tokens": 4096},
    }
    models = folder / "models.yaml"
    models.write_text(json.dumps({"models": [entry]}), encoding="utf-8")
    settings = {
        "ALLM_MODELS_FILE": str(models),
        "ALLM_MODEL_ROOTS": str(demo_safetensors().parent),
        "ALLM_VLLM_PYTHON": str(VLLM_PYTHON),
        "ALLM_VLLM_COMPILE": "off",  # takes minutes on a busy machine
        "ALLM_DEVICE": "cpu",
    }
    with running_stack(folder / "home", **settings) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(vllm_stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=vllm_stack.base_url, api_key="none", timeout=300, max_retries=3) as made:
        yield made


def test_a_chat_streams_token_by_token(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model=NAME, messages=CAPITAL, temperature=0, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(words) == "The capital of France is Paris."
    assert len(words) > 5
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == 8


def test_a_response_streams_in_a_schema(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model=NAME,
        input="What is the capital of France? Answer in JSON.",
        temperature=0,
        text={"format": {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}},
    ) as stream:
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert kinds.count("response.output_text.delta") > 3
    assert "Paris" in json.loads(response.output_text)["city"]


def test_logprobs_and_many_choices(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=NAME, messages=CAPITAL, temperature=1, seed=5, n=3, max_tokens=8, logprobs=True, top_logprobs=2
    )
    assert len(reply.choices) == 3
    for choice in reply.choices:
        assert choice.logprobs is not None
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content or ())


def test_the_worker_is_another_interpreter_and_the_service_has_no_vllm(
    vllm_stack: Stack, client: openai.OpenAI
) -> None:
    client.chat.completions.create(model=NAME, messages=CAPITAL, max_tokens=1)
    below = psutil.Process(vllm_stack.process.pid).children(recursive=True)
    workers = [each for each in below if "services.text.engine" in each.cmdline()]
    assert [each.cmdline()[0] for each in workers] == [str(VLLM_PYTHON)]
    services = [each for each in below if "services.text" in each.cmdline()]
    assert services
    for each in services:
        assert not any("site-packages/vllm" in mapped.path for mapped in each.memory_maps())


def test_the_models_own_checks_pass(vllm_stack: Stack) -> None:
    """The checks that neither the tests above nor the runtime contract (engine/test_runtime_contract.py) cover."""
    chosen = [option for check in OWN_CHECKS for option in ("--check", check)]
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "models", "test", NAME, "--json", "--prompt-tokens", "200", *chosen],
        env=environment(vllm_stack.home),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert "vllm" in json.dumps(found)
