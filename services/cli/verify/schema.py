"""Checks that an answer follows a JSON Schema."""

from __future__ import annotations

from typing import Any

from allm.text.v1 import chat_pb2

from services.cli.verify.check import Check, Failed
from services.cli.verify.shape import fault
from services.cli.verify.subject import Asked, Subject, said

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


def _run(subject: Subject) -> str:
    answer = subject.ask(Asked(messages=[said("Describe a cat as JSON.")], max_tokens=TOKENS, schema=SCHEMA))
    if subject.random and answer.finish == chat_pb2.FINISH_REASON_LENGTH and not answer.text:
        return f"random weights thought for {TOKENS} tokens before an answer"
    if answer.finish != chat_pb2.FINISH_REASON_STOP:
        raise Failed(f"the answer did not end within {TOKENS} tokens", "the grammar has no end in this vocabulary")
    if wrong := fault(answer.text, SCHEMA):
        raise Failed(wrong, "the bytes of the tokens are not those that the tokenizer says")
    return answer.text


CHECK = Check(name="json-schema", compared="an answer with the JSON Schema that it was asked to follow", run=_run)
