"""YAML with line numbers: errors name the line, and hostile input does not expand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from services.catalog.registration.marked_yaml import MAX_DEPTH, Marked, Wrong, read_yaml
from tests.case import case


def wrong(work: Callable[[], Any]) -> tuple[int, str, str]:
    with pytest.raises(Wrong) as caught:
        work()
    return caught.value.line, caught.value.key, caught.value.message


def value(text: str) -> Marked:
    return read_yaml(f"\na: {text}\n").fields(("a",))["a"]


def test_values_are_what_their_reader_takes_them_for() -> None:
    assert value("1e5").text() == "1e5", "a revision stays the text that it is"
    assert value("no").text() == "no"
    assert value("'true'").text() == "true"
    assert value("2026-11-22").text() == "2026-11-22"
    assert (value("TRUE").flag(), value("false").flag()) == (True, False)
    assert (value("7").integer(), value("-0.5").number(), value("3").number()) == (7, -0.5, 3.0)
    assert [one.text() for one in value("[x, 4.0]").items(2)] == ["x", "4.0"]
    assert value("{b: 1, c: null}").fields(("b", "c")).keys() == {"b"}, "what says nothing is not there"


def test_a_value_of_another_kind_is_refused_by_key_and_line() -> None:
    for text, read, message in [
        ("[x]", Marked.text, "a must be a string"),
        ("!secret x", Marked.text, "a must be a string"),
        ("!!python/name:os.system", Marked.text, "a must be a string"),
        ("yes", Marked.flag, "a must be true or false"),
        ("'true'", Marked.flag, "a must be true or false, without quotes"),
        ("1.5", Marked.integer, "a must be a whole number"),
        ("'1'", Marked.integer, "a must be a whole number, without quotes"),
        ("x", Marked.number, "a must be a number"),
        (".nan", Marked.number, "a must be a number"),
        ("nan", Marked.number, "a must be a finite number"),
        ("1e999", Marked.number, "a must be a finite number"),
        ("x", lambda value: value.items(3), "a must be a list"),
        ("[1, 2, 3, 4]", lambda value: value.items(3), "a may have at most 3 entries, but has 4"),
        ("[x]", lambda value: value.fields(("b",)), "a must be a mapping of keys to values"),
    ]:
        with case(text=text, read=read, message=message):
            assert wrong(partial(read, value(text))) == (2, "a", message)


def test_keys_are_reported_by_their_own_line() -> None:
    document = read_yaml("a: 1\nb:\n  - c: 1\n    d: 2\n    c: 3\n  - e: 1\n  - ? [x]\n    : 1\n")
    first, second, third = document.fields(("a", "b"))["b"].items(3)
    assert wrong(lambda: first.fields(("c", "d"))) == (5, "b[0].c", "the key 'c' appears twice")
    assert wrong(lambda: second.fields(("c", "d"))) == (6, "b[1].e", "unknown key 'e'; the keys are c, d")
    assert wrong(lambda: third.fields(("c", "d"))) == (7, "b[2]", "a key must be a word")
    assert (first.peek("d"), first.peek("x"), second.peek("e"), third.peek("x")) == ("2", "", "1", "")


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n"


def test_a_document_that_cannot_be_read() -> None:
    for text, line, words in [
        ("", 0, "it is empty"),
        ("# nothing\n", 0, "it is empty"),
        (BOMB, 2, "aliases (*name) are not supported"),
        ("a:\n  <<: *b\n", 2, "aliases (*name) are not supported"),
        ("[" * 100_000, 1, f"may be nested at most {MAX_DEPTH} levels deep"),
        ("a:\n  - b\n - c\n", 3, "while parsing a block mapping, expected <block end>"),
        ("a: 1\n---\nb: 1\n", 2, "expected a single document"),
        ("a: \x01", 0, "special characters are not allowed"),
    ]:
        with case(text=text, line=line, words=words):
            found = wrong(partial(read_yaml, text))
            assert (found[0], found[1]) == (line, "")
            assert words in found[2]


def test_a_document_that_is_no_mapping() -> None:
    assert wrong(lambda: read_yaml("x").fields(("a",))) == (1, "", "the document must be a mapping of keys to values")
