"""OpenAI's Embeddings as JSON: every form of input, every refusal, and bodies that arrive in pieces."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
from google.api import httpbody_pb2

from services.errors import InvalidRequest
from services.text.api.embeddings import MAX_INPUTS, PIECE_BYTES, Embedding, EmbeddingRequest, body_pieces, read_request
from tests.case import case


def read(**parameters: Any) -> EmbeddingRequest:
    data = json.dumps({"model": "m", **parameters}).encode()
    return read_request(httpbody_pb2.HttpBody(content_type="application/json", data=data))[1]


@pytest.mark.parametrize(
    ("given", "inputs", "param"),
    [
        ("abc", ("abc",), "input"),
        ([1, 2], ([1, 2],), "input"),
        (["a", "b"], ("a", "b"), "input[]"),
        (["a"], ("a",), "input[]"),
        ([[1], [2, 3]], ([1], [2, 3]), "input[]"),
    ],
)
def test_every_form_of_input(given: Any, inputs: tuple[Any, ...], param: str) -> None:
    request = read(input=given)
    assert (request.model, request.inputs, request.param, request.dimensions) == ("m", inputs, param, None)


def test_neutral_values_are_accepted() -> None:
    assert read(input="a", user="me", encoding_format=None, dimensions=None) == read(input="a")
    assert read(input="a", dimensions=7).dimensions == 7


def test_impossible_values_are_refused_by_name() -> None:
    for parameters, param, words in [
        ({}, "input", "Missing required"),
        ({"input": None}, "input", "Missing required"),
        ({"input": ""}, "input", "'input' is empty"),
        ({"input": []}, "input", "1 to 2048"),
        ({"input": ["a", ""]}, "input[1]", "'input[1]' is empty"),
        ({"input": [[1], []]}, "input[1]", "'input[1]' is empty"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input", "not 2049"),
        ({"input": ["a", [1]]}, "input", "a list of token ids or a list of such lists"),
        ({"input": ["a", 1]}, "input", "a list of token ids or a list of such lists"),
        ({"input": [1.5]}, "input[0]", "Invalid type"),
        ({"input": 5}, "input", "Invalid type"),
        ({"input": "a", "dimensions": 0}, "dimensions", "1 or more"),
        ({"input": "a", "dimensions": "x"}, "dimensions", "Invalid type"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "float or base64"),
        ({"input": "a", "model": ""}, "model", "Missing required"),
    ]:
        with case(parameters=parameters, param=param, words=words):
            with pytest.raises(InvalidRequest) as caught:
                read(**parameters)
            assert caught.value.param == param
            assert words in caught.value.message


VECTORS = [struct.pack("<3f", 0.1, -2.0, 3e-8), struct.pack("<3f", 1, 2, 3)]


def whole(embedding: Embedding, encoding: str | None) -> tuple[Any, int]:
    pieces = list(body_pieces(embedding, encoding))
    assert all(pieces)
    return json.loads(b"".join(pieces)), len(pieces)


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
def test_a_body_is_openais_and_says_the_same_in_both_encodings(encoding: str | None) -> None:
    body, pieces = whole(Embedding(model_id='m"/x', vectors=VECTORS, tokens=9), encoding)
    assert pieces == 1
    vectors = [entry.pop("embedding") for entry in body["data"]]
    assert body == {
        "object": "list",
        "data": [{"object": "embedding", "index": index} for index in range(2)],
        "model": 'm"/x',
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    }
    packed = [base64.b64decode(one) if encoding == "base64" else struct.pack("<3f", *one) for one in vectors]
    assert packed == VECTORS


def test_a_long_body_comes_in_pieces() -> None:
    vectors = [struct.pack("<1024f", *range(1024))] * 200
    body, pieces = whole(Embedding(model_id="m", vectors=vectors, tokens=200), None)
    assert len(body["data"]) == 200
    assert [entry["index"] for entry in body["data"]] == list(range(200))
    assert pieces > 3
    assert all(
        len(piece) < 2 * PIECE_BYTES for piece in body_pieces(Embedding(model_id="m", vectors=vectors, tokens=1), None)
    )
