"""JSON bodies: every input gives either the struct or a refusal that names the parameter."""

from __future__ import annotations

import json
import random
from typing import Any, Literal

import msgspec
import pytest
from google.api import httpbody_pb2

from services.errors import InvalidRequest
from services.rest.openai.body import convert, decode, json_body
from tests.case import case


class Item(msgspec.Struct):
    kind: Literal["one", "two"]
    count: int = 0


class Request(msgspec.Struct):
    name: str
    items: list[Item] = []
    share: float | None = None
    bias: dict[int, float] | None = None
    anything: Any = None


def read(data: bytes) -> Request:
    return decode(httpbody_pb2.HttpBody(content_type="application/json", data=data), Request)


def refusal(data: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read(data)
    return caught.value


def test_a_body_becomes_the_struct_and_unknown_parameters_are_ignored() -> None:
    request = read(b' {"name": "a", "items": [{"kind": "two"}], "share": 1, "new_in_2027": {"x": []}} ')
    assert request == Request(name="a", items=[Item(kind="two")], share=1.0)


def test_the_content_type_does_not_matter() -> None:
    assert decode(httpbody_pb2.HttpBody(data=b'{"name":"a"}'), Request).name == "a"


def test_last_value_of_a_repeated_key_counts() -> None:
    """The JSON readers that clients test with do the same."""
    data = b'{"name":"a","share":1,"name":"b"}'
    assert read(data).name == json.loads(data)["name"] == "b"


def test_no_body() -> None:
    error = refusal(b"")
    assert "no body" in error.message
    assert error.param is None


def test_invalid_json_is_reported() -> None:
    for data in [
        b" ",
        b"{",
        b'{"name"',
        b'{"name":"a"',
        b'{"name":"a",}',
        b'{"name":"a"}x',
        b'{"name":"a"}{"name":"b"}',
        b"{'name':'a'}",
        b'{"name":NaN}',
        b'{"name":"a","share":NaN}',
        b'{"name":"a","share":Infinity}',
        b'{"name":"a","share":01}',
        b'{"name":"a\nb"}',
        b"\xef\xbb\xbf{}",
        b'\x00{"name":"a"}',
        b"name=a&x=1",
    ]:
        with case(data=data):
            error = refusal(data)
            assert error.message.startswith("the body is not valid JSON: ")
            assert error.param is None


@pytest.mark.parametrize("data", [b'{"name":"\xff"}', b'{"name":"\xc3"}', b'{"name":"\xed\xa0\x80"}', b'{"n\xff":1}'])
def test_invalid_utf8_is_refused_or_in_an_unread_key(data: bytes) -> None:
    error = refusal(data)
    assert error.code == "INVALID_REQUEST"
    assert "utf-8" in error.message or error.param == "name"


@pytest.mark.parametrize("text", ["\\ud800", "\\udc00", "\\ud800x", "\\ud800\\ud800", "\\udc00\\ud800"])
def test_half_a_surrogate_pair_is_refused_before_it_can_break_an_encoder(text: str) -> None:
    """A string with half a pair cannot be encoded as UTF-8 for a worker or a log."""
    assert refusal(f'{{"name":"{text}"}}'.encode()).message.startswith("the body is not valid JSON")


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert read(b'{"name":"\\ud83d\\ude00"}').name == "😀"


def test_a_body_must_be_an_object() -> None:
    for data in [b"[]", b'"text"', b"1", b"null", b"true", b'[{"name":"a"}]']:
        with case(data=data):
            error = refusal(data)
            assert error.message.startswith("the body must be a JSON object")
            assert error.param is None


def test_a_wrong_parameter_is_named_with_its_path() -> None:
    for data, param, message in [
        (b"{}", "name", "Missing required parameter: 'name'."),
        (
            b'{"name":"a","items":[{"kind":"one"},{}]}',
            "items[1].kind",
            "Missing required parameter: 'items[1].kind'.",
        ),
        (b'{"name":5}', "name", "Invalid type or value for 'name': expected `str`, got `int`."),
        (b'{"name":null}', "name", "Invalid type or value for 'name': expected `str`, got `null`."),
        (b'{"name":"a","items":{}}', "items", "Invalid type or value for 'items': expected `array`, got `object`."),
        (
            b'{"name":"a","items":[{"kind":"one","count":1.5}]}',
            "items[0].count",
            "Invalid type or value for 'items[0].count': expected `int`, got `float`.",
        ),
        (
            b'{"name":"a","items":[{"kind":"ten"}]}',
            "items[0].kind",
            "Invalid type or value for 'items[0].kind': invalid enum value 'ten'.",
        ),
        (
            b'{"name":"a","bias":{"x":1}}',
            "bias",
            "Invalid type or value for 'bias': expected `int`, got `str`.",
        ),
    ]:
        with case(data=data, param=param, message=message):
            error = refusal(data)
            assert (error.param, error.message) == (param, message)


@pytest.mark.parametrize(
    "value",
    [
        "missing required field `x`",
        "a - at `$.b",
        "a - at `$.b` c",
        "` - at `key` in `$.z`",
        "x - at `$.b`\n - at `$.c`",
    ],
)
def test_text_of_a_caller_is_never_taken_for_a_parser_message(value: str) -> None:
    error = refusal(json.dumps({"name": "a", "items": [{"kind": value}]}).encode())
    assert error.param == "items[0].kind"
    assert error.message.startswith("Invalid type or value for 'items[0].kind': invalid enum value")


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" + "0" * 400])
def test_a_number_beyond_a_float_is_refused_by_name(number: str) -> None:
    assert refusal(f'{{"name":"a","share":{number}}}'.encode()).param == "share"


def test_a_number_of_too_many_digits_is_refused_by_name() -> None:
    data = f'{{"name":"a","items":[{{"kind":"one","count":{"9" * 100_000}}}]}}'.encode()
    assert refusal(data).param == "items[0].count"


def test_deep_nesting_is_refused_and_does_not_exhaust_the_stack() -> None:
    for data in [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"name":"a","items":' + b"[" * 100_000,
        b'{"name":"a","anything":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"name":"a","unknown":' + b'{"a":' * 100_000,
        b'{"name":"a","unknown":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ]:
        with case(data=data):
            assert refusal(data).code == "INVALID_REQUEST"


def test_moderate_nesting_passes() -> None:
    assert read(b'{"name":"a","anything":' + b"[" * 200 + b"]" * 200 + b"}").name == "a"


def test_damage_of_any_byte_is_read_or_refused_but_never_a_crash() -> None:
    rng = random.Random(11)  # noqa: S311
    whole = b'{"name":"\xc3\xa9\\u00e9","items":[{"kind":"one","count":-3}],"share":1.5e3,"bias":{"7":-1},"new":[null]}'
    refused = 0
    for _ in range(5000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            read(bytes(data[: rng.randint(1, len(data))] if rng.random() < 0.3 else data))
        except InvalidRequest as error:
            refused += 1
            assert error.message.encode()
    assert 1000 < refused < 5000


def test_a_response_is_written_with_its_nulls() -> None:
    message = json_body({"a": None, "b": "é", "c": 1})
    assert message.content_type == "application/json"
    assert message.data == '{"a":null,"b":"é","c":1}'.encode()


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"kind": "three"}, "list[3].kind"),
        ({}, "list[3].kind"),
        ({"kind": "one", "count": "x"}, "list[3].count"),
        ("text", "list[3]"),
    ],
)
def test_a_part_of_a_body_is_refused_with_its_whole_path(value: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        convert(value, Item, "list[3]")
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message


def test_a_part_of_a_body_becomes_the_struct() -> None:
    assert convert({"kind": "one", "other": 1}, Item, "x") == Item("one")
    with pytest.raises(InvalidRequest) as caught:
        convert([{"kind": "one"}, {}], list[Item], "x")
    assert caught.value.param == "x[1].kind"


def test_too_many_entries_are_refused_before_they_are_converted() -> None:
    def request(items: object) -> httpbody_pb2.HttpBody:
        return httpbody_pb2.HttpBody(data=json.dumps({"name": "x", "items": items}).encode())

    wrong = [{"kind": "one"}] * 4 + [{"kind": "three"}] * 2
    with pytest.raises(InvalidRequest, match="'items' has 6 entries; at most 5") as caught:
        decode(request(wrong), Request, {"items": 5, "bias": 5})
    assert caught.value.param == "items"
    assert len(decode(request(wrong[:4]), Request, {"items": 5}).items) == 4
    for broken in (b"[1, 2, 3, 4, 5, 6, 7]", b'{"items": [1, 2, 3, 4, 5, ', b'{"items": 1111111111111}'):
        with pytest.raises(InvalidRequest):
            decode(httpbody_pb2.HttpBody(data=broken), Request, {"items": 5})
