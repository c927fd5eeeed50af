"""Schemas of the official JSON-Schema-Test-Suite, answered by the real model through the gateway."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import jsonschema
import pytest

from tests.schema_suite import schema_cases
from tests.stack import MODEL, Stack

# Schemas whose whole answer is short for any model.
NAMES = (
    "enum: simple enum validation",
    "enum: enum with escaped characters",
    "enum: enum with false does not match 0",
    "enum: enum with [false] does not match [0]",
    "const: const validation",
    "const: const with object",
    "const: const with array",
    'const: const with {"a": false} does not match {"a": 0}',
    "const: nul characters in strings",
    "type: boolean type matches booleans",
    "type: null type matches only the null object",
    "ref: ref overrides any sibling keywords",
)
CASES = {case.name: case.schema for case in schema_cases()}


@pytest.mark.parametrize("name", [name for name in NAMES if name in CASES])
def test_answers_of_the_model_are_valid(stack: Stack, name: str) -> None:
    schema = CASES[name]
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Answer."}],
        "max_tokens": 200,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}},
    }
    request = urllib.request.Request(
        f"{stack.base_url}/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        (choice,) = json.load(reply)["choices"]
    assert choice["finish_reason"] == "stop"
    answer: Any = json.loads(choice["message"]["content"])
    jsonschema.validate(answer, schema, cls=jsonschema.Draft202012Validator)


def test_enough_of_them_are_in_the_suite() -> None:
    assert len([name for name in NAMES if name in CASES]) >= 10
