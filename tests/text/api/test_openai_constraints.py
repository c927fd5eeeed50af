"""Constraints in the words of vLLM and llama.cpp: every endpoint reads them, one at a time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.api import httpbody_pb2

from services.errors import AllmError, InvalidRequest, Unsupported
from services.text.api import completions
from services.text.api.chat import openai_request as chat_request
from services.text.api.responses import openai_request as responses_request
from services.text.conversation import OutputFormat
from services.text.limits import MAX_ANSWER_LENGTH, MAX_ANSWERS
from tests.case import case

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
GBNF = 'root ::= "a" # comment'
LARK = '%llguidance {}\nstart: "a"'
OF_SCHEMA = OutputFormat(kind="json_schema", schema=SCHEMA)
EVERY: tuple[tuple[str, Any, OutputFormat], ...] = (
    ("guided_json", SCHEMA, OF_SCHEMA),
    ("guided_json", json.dumps(SCHEMA), OF_SCHEMA),
    ("guided_choice", ["yes", "no"], OutputFormat(kind="choice", choices=("yes", "no"))),
    ("guided_regex", "[a-z]+", OutputFormat(kind="regex", source="[a-z]+")),
    ("guided_grammar", GBNF, OutputFormat(kind="gbnf", source=GBNF)),
    ("guided_grammar", 'start: "a"', OutputFormat(kind="lark", source='start: "a"')),
    ("structured_outputs", {"json": SCHEMA}, OF_SCHEMA),
    ("structured_outputs", {"regex": "a"}, OutputFormat(kind="regex", source="a")),
    ("structured_outputs", {"choice": ["a"]}, OutputFormat(kind="choice", choices=("a",))),
    ("structured_outputs", {"grammar": GBNF, "regex": None}, OutputFormat(kind="gbnf", source=GBNF)),
    ("structured_outputs", {"json_object": True, "disable_fallback": True}, OutputFormat(kind="json_object")),
    ("grammar", GBNF, OutputFormat(kind="gbnf", source=GBNF)),
    ("grammar", LARK, OutputFormat(kind="lark", source=LARK)),
    ("grammar", "", OutputFormat()),
    ("json_schema", SCHEMA, OF_SCHEMA),
    ("guided_regex", None, OutputFormat()),
)


def body(**parameters: Any) -> httpbody_pb2.HttpBody:
    return httpbody_pb2.HttpBody(data=json.dumps({"model": "m", **parameters}).encode())


def of_chat(**given: Any) -> OutputFormat:
    return chat_request.read_request(body(messages=[{"role": "user", "content": "a"}], **given))[1].output


def of_completions(**given: Any) -> OutputFormat:
    return completions.read_request(body(prompt="a", **given))[1].output


def of_responses(**given: Any) -> OutputFormat:
    return responses_request.read_request(body(input="a", **given))[1].settings.output


READERS = (of_chat, of_completions, of_responses)


def refusal(**given: Any) -> AllmError:
    with pytest.raises((InvalidRequest, Unsupported)) as caught:
        of_chat(**given)
    assert caught.value.http_status == 400
    assert f"'{caught.value.param}'" in caught.value.message
    return caught.value


def test_every_endpoint_reads_every_constraint() -> None:
    for name, value, expected in EVERY:
        for read in READERS:
            with case(name=name, value=value, read=read):
                assert read(**{name: value}) == expected


def test_a_request_has_one_constraint() -> None:
    json_object = {"type": "json_object"}
    for given, param in (
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": json_object, "grammar": GBNF}, "grammar"),
        ({"json_schema": SCHEMA, "structured_outputs": {"regex": "a"}}, "json_schema"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
    ):
        with case(given=given):
            assert refusal(**given).param == param
    with pytest.raises(InvalidRequest) as caught:
        of_responses(text={"format": json_object}, guided_regex="a")
    assert caught.value.param == "guided_regex"


def test_a_malformed_constraint_is_named_as_the_caller_named_it() -> None:
    for given, param in (
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[1]"}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_json": " " * (2**18 + 1)}, "guided_json"),
        ({"guided_json": {"a": "x" * 2**18}}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_choice": ["a" * (MAX_ANSWER_LENGTH + 1)]}, "guided_choice"),
        ({"guided_choice": ["a"] * (MAX_ANSWERS + 1)}, "guided_choice"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_grammar": "x" * (2**18 + 1)}, "guided_grammar"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a", "structural_tag": {}}}, "structured_outputs.structural_tag"),
        ({"json_schema": "{}"}, "json_schema"),
    ):
        with case(given=given):
            assert refusal(**given).param == param
