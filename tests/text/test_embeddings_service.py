"""Embeddings behind the gateway: REST and typed, safetensors and GGUF of the same weights, and all refusals."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import grpc
import numpy as np
import pytest
from allm.models.v1 import model_pb2, model_service_pb2, model_service_pb2_grpc
from allm.text.v1 import embedding_pb2, embedding_service_pb2, embedding_service_pb2_grpc

from services.text.api.embeddings import MAX_INPUTS
from tests.minilm import ENCODER, LIMIT, SIZE, unpack, write_gguf
from tests.stack import MODEL, Stack
from tests.text.service import PATIENCE_SECONDS, Reply, error_of, listed

GGUF = "minilm-gguf"
TEXTS = ["A man is eating food.", "Somebody eats a meal.", "The stock market fell sharply on Tuesday."]


def post(stack: Stack, path: str = "/v1/embeddings", **parameters: Any) -> Reply:
    body = json.dumps({"model": ENCODER, **parameters})
    with closing(http.client.HTTPConnection("127.0.0.1", stack.port, timeout=PATIENCE_SECONDS)) as connection:
        connection.request("POST", path, body, {"content-type": "application/json"})
        with closing(connection.getresponse()) as response:
            return Reply(response.status, response.headers, response.read())


def vectors(reply: Reply) -> np.ndarray:
    assert reply.status == 200, reply.body
    return np.array([entry["embedding"] for entry in reply.json["data"]], np.float32)


def create(stack: Stack, *inputs: embedding_pb2.EmbeddingInput, **parameters: Any) -> Any:
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(stack.grpc_address, options) as channel:
        stub = embedding_service_pb2_grpc.EmbeddingServiceStub(channel)
        request = embedding_service_pb2.CreateEmbeddingsRequest(**{"model": ENCODER, **parameters}, inputs=inputs)
        return stub.CreateEmbeddings(request, timeout=PATIENCE_SECONDS)


def text(content: str) -> embedding_pb2.EmbeddingInput:
    return embedding_pb2.EmbeddingInput(text=content)


def tokens(*ids: int) -> embedding_pb2.EmbeddingInput:
    return embedding_pb2.EmbeddingInput(tokens=embedding_pb2.EmbeddingTokens(ids=ids))


@pytest.fixture(scope="module")
def gguf(stack: Stack) -> Iterator[str]:
    """Registers the same model as GGUF, as an operator would."""
    path = stack.home / "models" / GGUF / "minilm.gguf"
    path.parent.mkdir(parents=True)
    write_gguf(path)
    with grpc.insecure_channel(stack.grpc_address) as channel:
        catalog = model_service_pb2_grpc.ModelServiceStub(channel)
        new = model_service_pb2.RegisterModelRequest(id=GGUF, source=path.as_uri(), format="gguf")
        registered = catalog.RegisterModel(new, timeout=PATIENCE_SECONDS).model
        assert list(registered.capabilities) == ["embeddings"]
        for event in catalog.WatchModels(model_service_pb2.WatchModelsRequest(), timeout=PATIENCE_SECONDS):
            model = catalog.GetModel(model_service_pb2.GetModelRequest(id=GGUF), timeout=PATIENCE_SECONDS).model
            assert model.state not in (model_pb2.MODEL_STATE_FAILED, model_pb2.MODEL_STATE_UNSUPPORTED), model.reason
            if model.state in (model_pb2.MODEL_STATE_READY, model_pb2.MODEL_STATE_LOADED):
                break
            assert event
        yield GGUF
        catalog.DeleteModel(model_service_pb2.DeleteModelRequest(id=GGUF), timeout=PATIENCE_SECONDS)


# --- results


def test_a_response_is_openais(stack: Stack) -> None:
    reply = post(stack, input="hello", user="me")
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/json"
    body = reply.json
    (entry,) = body.pop("data")
    assert body == {"object": "list", "model": ENCODER, "usage": {"prompt_tokens": 3, "total_tokens": 3}}
    assert (entry["object"], entry["index"], len(entry["embedding"])) == ("embedding", 0, SIZE)
    assert np.linalg.norm(entry["embedding"]) == pytest.approx(1, abs=1e-5)


def test_similar_meanings_are_close(stack: Stack) -> None:
    found = vectors(post(stack, input=TEXTS))
    assert found[0] @ found[1] > 0.6
    assert max(found[0] @ found[2], found[1] @ found[2]) < 0.2


def test_floats_base64_and_the_typed_api_say_the_same(stack: Stack) -> None:
    floats = vectors(post(stack, input=TEXTS, encoding_format="float"))
    encoded = post(stack, input=TEXTS, encoding_format="base64").json["data"]
    assert np.array([unpack(base64.b64decode(one["embedding"])) for one in encoded]) == pytest.approx(floats, abs=1e-5)
    answer = create(stack, *map(text, TEXTS))
    assert (answer.model, [one.index for one in answer.embeddings]) == (ENCODER, [0, 1, 2])
    assert answer.input_tokens == sum(len(one.split()) + 3 for one in TEXTS), "with full stop, [CLS] and [SEP]"
    assert np.array([one.vector for one in answer.embeddings]) == pytest.approx(floats, abs=1e-5)


def test_tokens_are_taken_as_they_are(stack: Stack) -> None:
    hello = [101, 7592, 102]
    expected = vectors(post(stack, input="hello"))
    assert vectors(post(stack, input=hello)) == pytest.approx(expected, abs=1e-5)
    assert vectors(post(stack, input=[hello, hello]))[1] == pytest.approx(expected[0], abs=1e-5)
    assert create(stack, tokens(*hello)).embeddings[0].vector == pytest.approx(expected[0], abs=1e-5)
    assert np.abs(vectors(post(stack, input=hello[1:2])) - expected).max() > 0.01


def test_fewer_dimensions_are_the_first_ones_of_length_one(stack: Stack) -> None:
    whole = vectors(post(stack, input=TEXTS))
    cut = vectors(post(stack, input=TEXTS, dimensions=64))
    expected = whole[:, :64] / np.linalg.norm(whole[:, :64], axis=1, keepdims=True)
    assert cut == pytest.approx(expected, abs=1e-5)
    assert len(create(stack, text("a"), dimensions=5).embeddings[0].vector) == 5
    assert vectors(post(stack, input=TEXTS, dimensions=SIZE)) == pytest.approx(whole, abs=1e-5)


def test_a_gguf_of_the_same_weights_gives_the_same_vectors(stack: Stack, gguf: str) -> None:
    ours, theirs = vectors(post(stack, input=TEXTS)), vectors(post(stack, model=gguf, input=TEXTS))
    assert (ours * theirs).sum(1).min() > 0.999
    assert np.linalg.norm(theirs, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)


@pytest.mark.slow
def test_as_many_inputs_as_are_allowed_and_small_requests(stack: Stack) -> None:
    many = [f"number {at} " * 2 for at in range(MAX_INPUTS)]
    alone = {at: vectors(post(stack, input=many[at]))[0] for at in (0, 1000, MAX_INPUTS - 1)}
    with ThreadPoolExecutor() as pool:
        large = pool.submit(post, stack, input=many)
        small = 0
        while not large.done():
            assert vectors(post(stack, input="hello")).shape == (1, SIZE)
            small += 1
        found = vectors(large.result())
    assert small > 1, "they did not wait for the large one"
    assert found.shape == (MAX_INPUTS, SIZE)
    for at, vector in alone.items():
        assert found[at] == pytest.approx(vector, abs=1e-5)


# --- refusals


@pytest.mark.parametrize(
    ("parameters", "param", "words"),
    [
        ({"input": ""}, "input", "is empty"),
        ({"input": ["a", ""]}, "input[1]", "is empty"),
        ({"input": ["a", "x " * LIMIT]}, "input[1]", f"has {LIMIT + 2} tokens, but this model takes at most {LIMIT}"),
        ({"input": "x " * LIMIT}, "input", f"has {LIMIT + 2} tokens"),
        ({"input": [30522]}, "input", "token 30522; this model's tokens are 0 to 30521"),
        ({"input": ["x " * 200] * 1500}, "input", "more than 300000 tokens"),
        ({"input": "a", "dimensions": SIZE + 1}, "dimensions", f"'dimensions' is {SIZE + 1}"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "float or base64"),
        ({"input": "a", "model": MODEL}, "model", "is for chat, not for embeddings"),
    ],
)
def test_impossible_value_is_a_400_that_names_it(
    stack: Stack, parameters: dict[str, Any], param: str, words: str
) -> None:
    reply = post(stack, **parameters)
    assert reply.status == 400
    assert (reply.error["param"], reply.error["type"]) == (param, "invalid_request_error")
    assert words in reply.error["message"]


def test_an_unknown_model_is_a_404(stack: Stack) -> None:
    reply = post(stack, model="nobody", input="a")
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/responses", {"input": "hello"}),
        ("/v1/responses", {"input": "hello", "background": True}),
        ("/v1/responses/input_tokens", {"input": "hello"}),
    ],
)
def test_an_embedding_model_does_not_write(stack: Stack, path: str, body: dict[str, Any]) -> None:
    reply = post(stack, path, **body)
    assert (reply.status, reply.error["param"]) == (400, "model")
    assert reply.error["message"] == f"The model `{ENCODER}` is for embeddings, not for chat."


def test_typed_errors_name_the_field(stack: Stack) -> None:
    def refused(*inputs: embedding_pb2.EmbeddingInput, **parameters: Any) -> tuple[str, str]:
        def call() -> Iterator[Any]:
            yield create(stack, *inputs, **parameters)

        error = error_of(call())
        assert error.code == grpc.StatusCode.INVALID_ARGUMENT
        return error.reason, error.metadata["param"]

    assert refused() == ("INVALID_REQUEST", "inputs")
    assert refused(text("a"), embedding_pb2.EmbeddingInput()) == ("INVALID_REQUEST", "inputs[1]")
    assert refused(text("")) == ("INVALID_REQUEST", "inputs[0]")
    assert refused(text("a"), text("x " * LIMIT)) == ("INVALID_REQUEST", "inputs[1]")
    assert refused(text("a"), dimensions=0) == ("INVALID_REQUEST", "dimensions")
    assert refused(text("a"), model=MODEL) == ("UNSUPPORTED", "model")


def test_both_models_are_listed(stack: Stack) -> None:
    assert {MODEL, ENCODER} <= set(listed(stack))
