"""Grammars over a vocabulary of single bytes, which keeps every mask readable."""

from __future__ import annotations

import array
import itertools
import json
import random

import pytest
from llguidance import LLMatcher

from bench.attack.text import ambiguous_schema, large_schema
from services.text.engine.constraint import TOKEN_SECONDS, Constraint, GrammarCompiler, Vocabulary
from services.worker.messages import EngineError

END = 256


def compiler(**limits: int) -> GrammarCompiler:
    tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]
    vocabulary = Vocabulary(tokens, [END], [END], lambda text: list(text.encode()))
    return GrammarCompiler(vocabulary, limits) if limits else GrammarCompiler(vocabulary)


def schema(definition: object) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(definition), overrides={"whitespace_flexible": False})


def allowed(constraint: Constraint) -> set[int]:
    mask = array.array("I", bytes(4 * 9))
    constraint.fill(mask.buffer_info()[0], 4 * len(mask))
    return {token for token in range(END + 2) if mask[token // 32] >> token % 32 & 1}


def feed(constraint: Constraint, text: bytes) -> None:
    for byte in text:
        assert byte in allowed(constraint)
        constraint.consume(byte)


def test_the_mask_says_what_may_follow() -> None:
    constraint = compiler().compile(schema({"enum": ["cat", "cow"]}))
    feed(constraint, b'"c')
    assert allowed(constraint) == set(b"ao")
    feed(constraint, b"ow")
    assert not constraint.complete
    feed(constraint, b'"')
    assert constraint.complete
    assert constraint.fault is None


def test_optional_continuation_allows_the_end() -> None:
    constraint = compiler().compile(schema({"type": "integer", "minimum": 1, "maximum": 20}))
    feed(constraint, b"2")
    assert not constraint.complete
    assert allowed(constraint) == {ord("0"), END}
    constraint.consume(END)
    assert constraint.complete


def test_requests_with_the_same_grammar_do_not_share_its_state() -> None:
    compiled = compiler()
    grammar = schema({"enum": ["ab", "cd"]})
    one, other = compiled.compile(grammar), compiled.compile(grammar)
    feed(one, b'"a')
    assert allowed(other) == {ord('"')}
    feed(other, b'"cd"')
    assert allowed(one) == {ord("b")}
    assert allowed(compiled.compile(grammar)) == {ord('"')}


@pytest.mark.parametrize(
    ("grammar", "named"),
    [
        (schema({"type": "object", "properties": {"a": {"not": {}}}}), "not"),
        (schema({"type": "strin"}), "strin"),
        ("start: foo", "foo"),
        ("start: /(a/", "unclosed"),
        ('{"grammars": [', "EOF"),
    ],
)
def test_a_grammar_that_does_not_compile_is_refused_with_the_reason(grammar: str, named: str) -> None:
    with pytest.raises(EngineError) as caught:
        compiler().compile(grammar)
    assert (caught.value.code, caught.value.param) == ("INVALID_REQUEST", "response_format")
    assert named in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


def test_a_grammar_that_becomes_too_much_fails_and_stays_so() -> None:
    rng = random.Random(1)  # noqa: S311
    pattern = "^[ab]*a[ab]{14}c[ab]*a[ab]{14}$"
    constraint = compiler(max_lexer_states=1000).compile(schema({"type": "string", "pattern": pattern}))
    for byte in b'"' + bytes(rng.choice(b"ab") for _ in range(5000)):
        allowed(constraint)
        constraint.consume(byte)
        if constraint.fault:
            break
    assert constraint.fault.code == "INVALID_REQUEST"
    assert "too complex" in constraint.fault.message
    constraint.consume(ord("a"))
    assert allowed(constraint) == {END}
    assert constraint.fault
    assert not constraint.complete


def test_an_object_of_too_many_optional_properties_fails_once_it_begins() -> None:
    many = schema({"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(3000)}})
    constraint = compiler().compile(many)
    feed(constraint, b"{")
    allowed(constraint)
    assert constraint.fault.code == "INVALID_REQUEST"


def test_an_answer_has_a_budget_of_processor_time_and_every_token_adds_to_it() -> None:
    grammar = compiler().compile(schema({"type": "string"}))._matcher
    for seconds in (TOKEN_SECONDS / 4, TOKEN_SECONDS * 2):  # for a mask, and as long for its token
        constraint = Constraint(grammar.deep_copy(), itertools.count(0, seconds).__next__)
        feed(constraint, b'"' + b"a" * 500)
        assert (constraint.fault is None) == (seconds < TOKEN_SECONDS), seconds


def test_a_grammar_whose_tokens_are_slow_to_find_ends_the_answer() -> None:
    constraint = compiler().compile(schema(ambiguous_schema("array")))
    for byte in b"[" + b"[[]]," * 1000:
        allowed(constraint)
        constraint.consume(byte)
        if constraint.fault:
            break
    assert "too complex" in constraint.fault.message
    again = {"$ref": "#/$defs/n"}
    kinds = [{"type": "integer"}, *({"type": "array", "items": again, "maxItems": 1000 + at} for at in range(200))]
    with pytest.raises(EngineError, match="too complex for the compiler"):
        compiler().compile(schema({"$defs": {"n": {"anyOf": kinds}}, **again}))


def test_a_grammar_that_would_take_long_to_compile_is_refused() -> None:
    with pytest.raises(EngineError, match="too complex for the compiler") as caught:
        compiler().compile(schema(large_schema("a")))
    assert caught.value.code == "INVALID_REQUEST"
    tools = (f'"tool{at}" %json {json.dumps(parameters(at))}' for at in range(128))
    compiler().compile("start: " + " | ".join(tools))


def parameters(tool: int) -> dict[str, object]:
    names = [f"tool{tool}_{at}" for at in range(8)]
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names[:2]}


def test_markup_is_no_text_of_an_answer() -> None:
    tokens = [*(bytes([byte]) for byte in range(256)), b"<end>", b"<tag>"]
    compiled = GrammarCompiler(Vocabulary(tokens, [END, END + 1], [END], lambda text: list(text.encode())))
    as_text, as_token = compiled.compile(schema({"const": "<tag>"})), compiled.compile('start: <tag> "x"')
    feed(as_text, b'"<tag>"')
    assert as_text.complete
    assert allowed(as_token) == {END + 1}
    as_token.consume(END + 1)
    assert allowed(as_token) == {ord("x")}
