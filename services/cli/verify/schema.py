"""Checks that an answer follows a JSON Schema: objects of enums, bounded integers, and lists of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from allm.text.v1 import chat_pb2

from services.cli.verify.check import Check, Failed
from services.cli.verify.subject import Request, Subject, message

TOKENS = 256
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "animal": {"type": "string", "enum": ["cat", "dog", "bee"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 8},
        "eats": {
            "type": "array",
            "items": {"type": "string", "enum": ["fish", "meat", "grass"]},
            "minItems": 1,
            "maxItems": 3,
        },
    },
    "required": ["animal", "legs", "eats"],
    "additionalProperties": False,
}


def fault(text: str, schema: Mapping[str, Any]) -> str:
    """Describes the first error of a JSON text; empty if it is valid."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"{text[:80]!r} is not JSON: {error}"
    return _fault(value, schema, "the value")


def _fault(value: Any, schema: Mapping[str, Any], where: str) -> str:
    if "enum" in schema:
        return "" if value in schema["enum"] else f"{where} is {value!r}, none of {schema['enum']}"
    if schema["type"] == "integer":
        fits = type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        return "" if fits else f"{where} is {value!r}, not an integer from {schema['minimum']} to {schema['maximum']}"
    if schema["type"] == "array":
        if not isinstance(value, list) or not schema["minItems"] <= len(value) <= schema["maxItems"]:
            return f"{where} is not a list of {schema['minItems']} to {schema['maxItems']}"
        return next(filter(None, (_fault(each, schema["items"], f"an item of {where}") for each in value)), "")
    if not isinstance(value, dict) or value.keys() != schema["properties"].keys():
        return f"{where} is not an object with {', '.join(schema['properties'])} and nothing else"
    return next(filter(None, (_fault(value[name], part, name) for name, part in schema["properties"].items())), "")


def _run(subject: Subject) -> str:
    answer = subject.ask(Request(messages=[message("Describe a cat as JSON.")], max_tokens=TOKENS, schema=SCHEMA))
    if subject.random and answer.finish == chat_pb2.FINISH_REASON_LENGTH and not answer.text:
        return f"random weights reasoned for {TOKENS} tokens before an answer"
    if answer.finish != chat_pb2.FINISH_REASON_STOP:
        raise Failed(f"the answer did not end within {TOKENS} tokens", "the grammar cannot end in this vocabulary")
    if wrong := fault(answer.text, SCHEMA):
        raise Failed(wrong, "the bytes of the tokens differ from the tokenizer's")
    return answer.text


CHECK = Check(name="json-schema", compared="an answer and the JSON Schema of its request", run=_run)
