"""The official JSON-Schema-Test-Suite: each schema is refused by keyword, or every answer under its grammar is valid.

Answers are random walks over the tokens that the grammar allows, with the demo model's tokenizer: an answer that a
model would hardly give is as good a test as any.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher

from services.errors import InvalidRequest
from services.text.chat import grammar_of
from services.text.conversation import ChatRequest, Message, OutputFormat
from services.text.engine.runtimes.llama_cpp import LlamaEngine
from services.text.engine.sampling import SamplingParams
from services.text.parsers.dialect import choose
from tests.byte_tokens import TOKENIZER
from tests.schema_suite import Case, schema_cases
from tests.text.checked_request import checked_request

ROOT = Path(__file__).parents[3]
WALKS = 4  # per schema
MAX_TOKENS = 160
CLOSING = re.compile(rb"[\"}\]:,\d]+|null|true|false")
# The validator reads patterns with Python's `re`, which has no Unicode properties.
UNREADABLE = r"\p{"


def request(schema: dict[str, Any]) -> ChatRequest:
    output = OutputFormat(kind="json_schema", schema=schema)
    return ChatRequest(
        model="m", messages=(Message(role="user", content="x"),), sampling=SamplingParams(), output=output
    )


def grammar(schema: dict[str, Any]) -> str:
    return grammar_of(checked_request(request(schema)), choose("", "llama"), reasoning_open=False)


def refusal(case: Case) -> str:
    """Returns the reason for refusing a schema; empty if it is accepted."""
    try:
        checked_request(request(case.schema))
    except InvalidRequest as error:
        assert error.param == "response_format"
        return error.message
    return ""


def words(value: Any) -> Iterator[str]:
    """Yields every keyword and every name in a schema."""
    if isinstance(value, dict):
        yield from value
        for item in value.values():
            yield from words(item)
    elif isinstance(value, list):
        for item in value:
            yield from words(item)
    elif value is False:
        yield "false"
    elif value == jsonschema.Draft202012Validator.META_SCHEMA["$id"]:
        yield "$dynamicAnchor"  # the metaschema contains it


def ascii_pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """Matches patterns as ECMA 262 does: words and digits are ASCII only, white space is not."""
    flags = 0 if r"\s" in pattern.lower() else re.ASCII
    if isinstance(instance, str) and not re.search(pattern, instance, flags):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": ascii_pattern})


class Walker:
    """A generator of random answers under a grammar."""

    def __init__(self, engine: LlamaEngine) -> None:
        self._engine = engine
        size = engine.ready.vocabulary
        self._texts = [engine.piece(token, False) for token in range(size)]
        self._closing = np.array([CLOSING.fullmatch(text) is not None for text in self._texts])
        self._words = np.zeros((size + 31) // 32, dtype=np.uint32)

    def walk(self, text: str, seed: str) -> str | None:
        """Returns an answer, or None if it reached the token limit."""
        chance = random.Random(seed)  # noqa: S311 (a fixed seed)
        constraint = self._engine.constraint(text)
        reported = b""
        for count in range(MAX_TOKENS):
            constraint.fill(self._words.ctypes.data, self._words.nbytes)
            bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")[: len(self._texts)].astype(bool)
            # Prefers tokens that close a value, because a uniform choice among 49,152 tokens would hardly end one.
            closing = bits & self._closing
            wanted = closing if closing.any() and chance.random() < (0.4 if count < 20 else 0.9) else bits
            allowed = np.flatnonzero(wanted)
            assert len(allowed), f"nothing may follow {reported!r}"
            token = int(chance.choice(allowed))
            if self._engine.is_end(token):
                return reported.decode()
            constraint.consume(token)
            assert constraint.fault is None, constraint.fault
            reported += self._texts[token]
            if constraint.complete:
                return reported.decode()
        return None


CASES = schema_cases()
SUPPORTED = [case for case in CASES if not refusal(case)]


def test_the_suite_is_the_one_that_comes_with_the_validator() -> None:
    (wanted,) = re.findall(r"^jsonschema==(\S+)", (ROOT / "tests/text/schema-suite.txt").read_text(), re.MULTILINE)
    assert f"\njsonschema=={wanted}\n" in (ROOT / "constraints.txt").read_text()
    assert len(CASES) >= 400
    assert len(SUPPORTED) >= 200


def test_unsupported_schema_is_refused_with_its_keyword() -> None:
    for case in CASES:
        if reason := refusal(case):
            assert any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", reason) for word in words(case.schema)), (
                case.name,
                reason,
            )


@pytest.fixture(scope="module")
def walker(engine: LlamaEngine) -> Walker:
    return Walker(engine)


def test_output_under_a_supported_schema_is_valid(walker: Walker) -> None:
    ended: Counter[str] = Counter()
    for case in SUPPORTED:
        if UNREADABLE in json.dumps(case.schema).replace("\\\\", "\\"):
            ended["unreadable"] += 1
            continue
        validator = Validator(case.schema, format_checker=Validator.FORMAT_CHECKER)
        for number in range(WALKS):
            text = walker.walk(grammar(case.schema), f"{case.name} {number}")
            ended["length" if text is None else "whole"] += 1
            if text is not None:
                errors = [error.message for error in validator.iter_errors(json.loads(text))]
                assert not errors, (case.name, text, errors)
    assert ended["unreadable"] <= 8, ended
    assert ended["whole"] > 4 * ended["length"], ended
    assert ended["whole"] >= 500, ended


def test_no_instance_that_the_suite_calls_invalid_can_be_written() -> None:
    invalid = 0
    for case in SUPPORTED:
        start = LLMatcher(TOKENIZER, grammar(case.schema), log_level=0)
        for instance in case.invalid:
            text = json.dumps(instance, ensure_ascii=False)
            if "\ufeff" in text:
                continue  # only ECMA 262 counts the byte order mark as white space
            matcher, wanted = start.deep_copy(), list(text.encode())
            assert not (matcher.try_consume_tokens(wanted) == len(wanted) and matcher.is_accepting()), (
                case.name,
                text,
            )
            invalid += 1
    assert invalid > 300
