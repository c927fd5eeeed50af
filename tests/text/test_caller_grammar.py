"""Grammars of callers: what they allow, alone and within a grammar of ours, and how their faults are named."""

from __future__ import annotations

import json

import pytest
from llguidance import LLMatcher

from services.errors import InvalidRequest
from services.text.caller_grammar import answer_lark
from services.text.chat import grammar_text, output_rule
from services.text.conversation import OutputFormat
from tests.byte_tokens import TOKENIZER, tokens
from tests.case import case

REGEX = OutputFormat(kind="regex")


def allows(kind: str, source: str, text: str, start: str = "start: {}") -> bool:
    grammar = grammar_text(start.format(output_rule(REGEX)), answer_lark(kind, source, "p"))
    matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
    wanted = tokens(text)
    return matcher.try_consume_tokens(wanted) == len(wanted) and matcher.is_accepting()


def test_each_kind_allows_its_texts_and_no_others() -> None:
    for kind, source, good, bad in (
        ("choice", json.dumps(["a", 'b\n"é'], ensure_ascii=False), ("a", 'b\n"é'), ("", "ab", "b")),
        ("regex", r"\d+/x", ("1/x", "22/x"), ("/x", "1/x ", "a1/x")),
        ("regex", r"^[a-z]+\$$", ("a$",), ("a", "$")),
        ("regex", r"^a\\$", ("a\\",), ("a", "a$")),
        ("regex", r"\Aa|b\Z", ("a", "b"), ("ab",)),
        ("regex", "a\nb", ("a\nb",), ("ab",)),
        ("lark", '%llguidance {}\nstart: "a" x\nx: /[0-9]+/', ("a1",), ("a", "1")),
        ("lark", "start: calls\ncalls: answer\nanswer: /x+/", ("xx",), ("",)),  # names of our own rules
        ("gbnf", 'root ::= "a" [0-9]', ("a1",), ("a", "a12")),
    ):
        for text in (*good, *bad):
            with case(kind=kind, source=source, text=text):
                assert allows(kind, source, text) == (text in good)


def test_it_is_one_part_of_a_larger_grammar() -> None:
    start = "start: thought {}\nthought[lazy]: /(.|\\n)*<\\/think>/"
    assert allows("regex", "[0-9]+", "Hm.</think>12", start)
    assert not allows("regex", "[0-9]+", "12", start)
    assert allows("choice", '["yes"]', "<|channel|>yes", "start: <|channel|> {}")


def test_a_fault_names_the_parameter_on_one_line() -> None:
    for kind, source, word in (
        ("regex", "(", "regex parse error"),
        ("regex", "(?=x)", "look-around"),
        ("lark", "start: nowhere", "nowhere"),
        ("lark", "", ""),
        ("gbnf", "root ::= b", "there is no rule 'b'"),
        ("gbnf", f'root ::= "{"a" * 60_000}"', "too complex"),
    ):
        with case(kind=kind, source=source):
            with pytest.raises(InvalidRequest) as caught:
                answer_lark(kind, source, "guided_x")
            assert caught.value.param == "guided_x"
            assert caught.value.message.startswith("'guided_x' ")
            assert word in caught.value.message
            assert "\n" not in caught.value.message
