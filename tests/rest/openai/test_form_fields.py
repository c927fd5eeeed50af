"""Form fields as typed parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from services.errors import InvalidRequest
from services.rest.openai.form_fields import FormFields
from tests.case import case


def one(value: str) -> FormFields:
    """Returns a form with one field, `a`."""
    return FormFields([("a", value)])


def refused(read: Callable[[str], Any], name: str = "a") -> str:
    """Returns the message of a refusal that names the parameter."""
    with pytest.raises(InvalidRequest) as caught:
        read(name)
    assert caught.value.param is not None
    assert f"'{caught.value.param}'" in caught.value.message
    return caught.value.message


def test_absent_fields() -> None:
    fields = FormFields([])
    assert fields.text("a") == ""
    assert fields.array("a") == []
    assert (fields.number("a"), fields.integer("a"), fields.switch("a"), fields.members("a")) == (None,) * 4
    assert fields.choice("a", ("x", "y"), "y") == "y"


@pytest.mark.parametrize("value", ["", "null", " "])
def test_values_that_say_nothing(value: str) -> None:
    fields = one(value)
    assert (fields.number("a"), fields.integer("a"), fields.switch("a"), fields.members("a")) == (None,) * 4
    assert fields.choice("a", ("x", "y"), "y") == "y"
    assert fields.text("a") == value  # a text may have this value


@pytest.mark.parametrize(("value", "number"), [("0", 0.0), ("0.5", 0.5), ("-1e3", -1000.0), (" 2 ", 2.0)])
def test_numbers(value: str, number: float) -> None:
    assert one(value).number("a") == number


def test_invalid_numbers() -> None:
    for value in ["x", "nan", "inf", "-inf", "1e999", "1,5", "1_0", "true"]:
        with case(value=value):
            assert "must be a number" in refused(one(value).number)


@pytest.mark.parametrize(("value", "number"), [("5", 5), ("5.0", 5), ("-3", -3)])
def test_whole_numbers(value: str, number: int) -> None:
    assert one(value).integer("a") == number


@pytest.mark.parametrize("value", ["5.5", "1e300", "five"])
def test_invalid_whole_numbers(value: str) -> None:
    assert "must be a" in refused(one(value).integer)


@pytest.mark.parametrize(("value", "on"), [("true", True), ("True", True), ("1", True), ("false", False), ("0", False)])
def test_switches(value: str, on: bool) -> None:
    assert one(value).switch("a") is on


def test_invalid_switches() -> None:
    assert refused(one("yes").switch) == "'a' must be 'true' or 'false', not 'yes'."


def test_choices() -> None:
    assert one("x").choice("a", ("x", "y"), "y") == "x"
    with pytest.raises(InvalidRequest, match=r"'a' must be one of x, y, not 'z'\."):
        one("z").choice("a", ("x", "y"), "y")


def test_once_means_once() -> None:
    fields = FormFields([("a", "1"), ("a", "1")])
    for read in (fields.text, fields.number, fields.integer, fields.switch):
        assert refused(read) == "'a' is given 2 times; once is allowed."


def test_arrays_in_both_spellings() -> None:
    assert FormFields([("a[]", "1"), ("b", "x"), ("a[]", "2")]).array("a") == ["1", "2"]
    assert FormFields([("a", "1"), ("a", "2")]).array("a") == ["1", "2"]
    assert FormFields([("a[]", "")]).array("a") == []


def test_objects_in_brackets_and_as_json() -> None:
    assert FormFields([("a[x]", "1"), ("a[y]", "b")]).members("a") == {"x": "1", "y": "b"}
    assert one('{"x": 0.5, "y": "b", "z": null}').members("a") == {"x": "0.5", "y": "b"}
    assert one("auto").members("a") == "auto"


def test_objects_that_are_none() -> None:
    assert "must be a JSON object" in refused(one('{"x"').members)
    assert "must be a JSON object" in refused(one("{" * 100_000).members)
    assert "as a whole and in parts" in refused(FormFields([("a", "auto"), ("a[x]", "1")]).members)
    assert "2 times" in refused(FormFields([("a[x]", "1"), ("a[x]", "2")]).members)
