"""Multipart forms from the gateway: split anywhere, hostile, or truncated; and the types of their fields."""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from google.api import httpbody_pb2

from services.errors import InvalidRequest, RequestTooLarge
from services.rest.openai import multipart
from services.rest.openai.multipart import DISCARD, FilePart, Form, FormFields, discarding_rest, read_form
from tests.case import case

BOUNDARY = "a-boundary"
KIND = f"multipart/form-data; boundary={BOUNDARY}"


class Kept:
    """A sink that keeps the received chunks."""

    def __init__(self, limit: int | None = None) -> None:
        self.pieces: list[bytes] = []
        self.limit = limit

    def write(self, data: bytes, /) -> None:
        if self.limit is not None and sum(map(len, self.pieces)) + len(data) > self.limit:
            raise RequestTooLarge("too large", param="file")
        self.pieces.append(data)


def part(name: str, value: bytes, *, file_name: str | None = None, headers: Sequence[str] = ()) -> bytes:
    """Encodes one part with the boundary before it."""
    disposition = f'form-data; name="{name}"' + (f'; filename="{file_name}"' if file_name is not None else "")
    lines = [f"--{BOUNDARY}", f"Content-Disposition: {disposition}", *headers, "", ""]
    return "\r\n".join(lines).encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    """Encodes a complete form."""
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


async def in_pieces(pieces: Sequence[bytes], kind: str = KIND) -> AsyncIterator[httpbody_pb2.HttpBody]:
    """Yields messages as the gateway sends them: only the first has a content type."""
    for at, piece in enumerate(pieces):
        yield httpbody_pb2.HttpBody(content_type=kind if at == 0 else "", data=piece)


async def read(
    data: bytes, *, kind: str = KIND, cuts: Sequence[int] = (), limit: int | None = None
) -> tuple[Form, bytes]:
    """Parses a form. Returns it and the content of its `file` parts."""
    sink = Kept(limit)
    edges = [0, *sorted(cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
    found = await read_form(in_pieces(pieces, kind), lambda part: sink if part.name == "file" else None)
    return found, b"".join(sink.pieces)


async def refusal(data: bytes, kind: str = KIND) -> InvalidRequest:
    """Returns the refusal of a form."""
    with pytest.raises(InvalidRequest) as caught:
        await read(data, kind=kind)
    return caught.value


def test_the_text_service_needs_no_parser_of_forms() -> None:
    code = (
        "import sys; sys.modules['python_multipart'] = None; import services.text.__main__, services.catalog.__main__"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


async def test_fields_and_file_in_any_order() -> None:
    before, after = part("model", b"whisper"), part("prompt", "Zürich".encode())
    file = part("file", b"\x00\xffsound", file_name="speech.mp3", headers=["Content-Type: audio/mpeg"])
    found, content = await read(form(before, file, after))
    assert found.fields == [("model", "whisper"), ("prompt", "Zürich")]
    assert content == b"\x00\xffsound"


async def test_repeated_fields_are_all_there_in_order() -> None:
    found, _ = await read(form(part("a[]", b"1"), part("b", b""), part("a[]", b"2")))
    assert found.fields == [("a[]", "1"), ("b", ""), ("a[]", "2")]


async def test_cut_anywhere_the_form_is_the_same() -> None:
    # The content consists of boundary characters, so that every cut may look like the start of a boundary.
    content = b"\r\n--a-bound\r\n--\r\r\n\r\n--a-boundarx--\r\n-" * 3
    data = form(part("model", b"m"), part("file", content, file_name="x.wav"), part("language", b"en"))
    chance = random.Random(7)  # noqa: S311
    for cut in range(1, len(data)):
        found, kept = await read(data, cuts=[cut])
        assert (found.fields, kept) == ([("model", "m"), ("language", "en")], content), f"cut at {cut}"
    for _ in range(200):
        found, kept = await read(data, cuts=[chance.randrange(len(data)) for _ in range(chance.randrange(1, 30))])
        assert (found.fields, kept) == ([("model", "m"), ("language", "en")], content)
    found, kept = await read(data, cuts=range(1, len(data)))
    assert (found.fields, kept) == ([("model", "m"), ("language", "en")], content)


async def test_a_file_passes_on_before_it_is_whole() -> None:
    sink = Kept()
    seen: list[int] = []

    async def slowly() -> AsyncIterator[httpbody_pb2.HttpBody]:
        first = True
        for piece in (part("file", b"", file_name="x")[:-2], b"a" * 1000, b"b" * 1000, b"\r\n" + form()):
            seen.append(sum(map(len, sink.pieces)))
            yield httpbody_pb2.HttpBody(content_type=KIND if first else "", data=piece)
            first = False

    await read_form(slowly(), lambda part: sink)
    assert seen == [0, 0, 1000, 2000]


async def test_invalid_form_is_reported() -> None:
    for kind, says in [
        ("application/json", "must be multipart/form-data, not 'application/json'"),
        ("", "must be multipart/form-data, not 'nothing'"),
        ("multipart/mixed; boundary=x", "not 'multipart/mixed'"),
        ("multipart/form-data", "lacks its boundary"),
        ("multipart/form-data; boundary=", "lacks its boundary"),
        ('multipart/form-data; boundary=""', "lacks its boundary"),
        (f"multipart/form-data; boundary={'x' * 300}", "boundary cannot be used"),
        ("multipart/form-data; boundary=☃", "must be multipart/form-data"),
        ("application/x-www-form-urlencoded", "not 'application/x-www-form-urlencoded'"),
    ]:
        with case(kind=kind, says=says):
            assert says in (await refusal(b'{"model": "m"}', kind)).message


async def test_quoted_boundaries_and_odd_case() -> None:
    found, _ = await read(form(part("a", b"1")), kind=f'Multipart/Form-Data; charset=utf-8; boundary="{BOUNDARY}"')
    assert found.fields == [("a", "1")]


async def test_no_body_at_all() -> None:
    async def nothing() -> AsyncIterator[httpbody_pb2.HttpBody]:
        for body in ():
            yield body

    with pytest.raises(InvalidRequest, match="has no body"):
        await read_form(nothing(), lambda part: None)


async def test_every_form_that_is_cut_off_is_refused() -> None:
    data = form(part("model", b"m"), part("file", b"sound", file_name="x"))
    end = len(data) - len("\r\n")  # the bytes after the last boundary have no meaning
    for length in range(end):
        assert "cut off" in (await refusal(data[:length])).message, f"cut after {length}"
    assert (await read(data[:end]))[1] == b"sound"


@pytest.mark.parametrize(
    "data",
    [
        b"no form at all",
        b"--another\r\n",
        f"--{BOUNDARY}\r\nno header\r\n\r\n".encode(),
        f"--{BOUNDARY}\r\n: empty name\r\n\r\n".encode(),
        f"--{BOUNDARY}\r\nA: {'x' * 10_000}\r\n\r\n".encode(),
        f"--{BOUNDARY}\r\n".encode() + b"A: 1\r\n" * 100,
        f"--{BOUNDARY}x\r\n".encode(),
    ],
)
async def test_malformed_forms_are_refused(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert "malformed" in (await refusal(data)).message
    assert not caplog.records  # the parser's log would quote the form


@pytest.mark.parametrize(
    "headers",
    ["Content-Type: text/plain", 'Content-Disposition: attachment; name="a"', "Content-Disposition: form-data"],
)
async def test_a_part_without_a_name_is_refused(headers: str) -> None:
    data = f"--{BOUNDARY}\r\n{headers}\r\n\r\nx\r\n".encode() + form()
    assert (await refusal(data)).message == "part 1 of the multipart form has no name"


async def test_a_name_may_be_so_long() -> None:
    longest = "n" * multipart.MAX_NAME_BYTES
    assert (await read(form(part(longest, b"1"))))[0].fields == [(longest, "1")]
    assert "a name of over 256 bytes" in (await refusal(form(part(longest + "n", b"1")))).message


async def test_there_may_be_so_many_parts() -> None:
    parts = [part("a", b"1")] * multipart.MAX_PARTS
    assert len((await read(form(*parts)))[0].fields) == multipart.MAX_PARTS
    assert "more than 128 parts" in (await refusal(form(*parts, part("a", b"1")))).message


async def test_fields_may_be_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "MAX_FIELD_BYTES", 100)
    monkeypatch.setattr(multipart, "MAX_FIELDS_BYTES", 250)
    await read(form(*[part("a", b"x" * 100)] * 2))
    error = await refusal(form(part("a", b"x" * 101)))
    assert (error.message, error.param) == ("'a' is longer than 100 bytes.", "a")
    assert "longer than 250 bytes in all" in (await refusal(form(*[part("a", b"x" * 100)] * 3))).message


async def test_a_long_file_is_its_sinks_to_refuse() -> None:
    data = form(part("file", b"x" * 2_000_000, file_name="x"))
    assert len((await read(data, limit=2_000_000))[1]) == 2_000_000
    with pytest.raises(RequestTooLarge):
        await read(data, limit=1_999_999)


@pytest.mark.parametrize("encoding", ["base64", "quoted-printable"])
async def test_transfer_encodings_are_refused(encoding: str) -> None:
    error = await refusal(form(part("file", b"eA==", headers=[f"Content-Transfer-Encoding: {encoding}"])))
    assert encoding in error.message
    assert error.param == "file"


async def test_a_field_that_is_no_text_is_refused() -> None:
    error = await refusal(form(part("prompt", b"\xff\xfe")))
    assert (error.message, error.param) == ("'prompt' is not valid UTF-8.", "prompt")


async def test_the_headers_of_a_part_are_told_and_names_of_files_kept_short() -> None:
    parts: list[FilePart] = []
    given = part("file", b"x", file_name="n" * 1000, headers=["Content-Type: audio/mpeg"])
    await read_form(in_pieces([form(given)]), parts.append)
    assert parts == [FilePart("file", "n" * 255, "audio/mpeg")]


async def test_the_names_of_discarded_files_are_kept() -> None:
    data = form(part("other", b"\xff" * 100_000, file_name="x"), part("model", b"m"))
    found = await read_form(in_pieces([data]), lambda part: DISCARD if part.file_name else None)
    assert (found.fields, found.discarded) == ([("model", "m")], ["other"])


async def test_boundaries_within_a_part_are_not_gone_through_for_long() -> None:
    begin = part("file", b"", file_name="x")[:-2]
    for noise in (f"\r\n--{BOUNDARY}x", f"\r\n--{BOUNDARY}-x"):
        taken = Counting([begin, *[noise.encode() * 10_000] * 100])
        with pytest.raises(InvalidRequest, match="malformed"):
            await read_form(taken, lambda part: Kept())
        assert taken.count <= 2
    taken = Counting([begin, f"\r\n--{BOUNDARY}".encode(), *[b" " * 100_000] * 100])
    with pytest.raises(InvalidRequest, match="malformed"):
        await read_form(taken, lambda part: Kept())
    assert taken.count <= 3


async def test_a_little_space_behind_a_boundary_is_allowed() -> None:
    data = form(part("a", b"1"), part("b", b"2")).replace(
        b'boundary\r\nContent-Disposition: form-data; name="b"',
        b'boundary \t\r\nContent-Disposition: form-data; name="b"',
    )
    assert (await read(data))[0].fields == [("a", "1"), ("b", "2")]


class Counting:
    """A message source that counts the messages taken."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self.count = 0

    def __aiter__(self) -> Counting:
        return self

    async def __anext__(self) -> httpbody_pb2.HttpBody:
        if self.count == len(self.pieces):
            raise StopAsyncIteration
        self.count += 1
        return httpbody_pb2.HttpBody(content_type=KIND if self.count == 1 else "", data=self.pieces[self.count - 1])


async def test_the_rest_of_what_failed_is_taken() -> None:
    messages = Counting([b"x"] * 100)
    with pytest.raises(InvalidRequest, match="malformed"):
        async with discarding_rest(messages):
            await read_form(messages, lambda part: None)
    assert messages.count == 100


async def test_reading_the_rest_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "DISCARD_BYTES", 10)
    messages = Counting([b"x"] * 100)
    with pytest.raises(InvalidRequest, match="malformed"):
        async with discarding_rest(messages):
            await read_form(messages, lambda part: None)
    assert messages.count == 12

    async def stalled() -> AsyncIterator[httpbody_pb2.HttpBody]:
        yield httpbody_pb2.HttpBody(content_type=KIND, data=b"x")
        await asyncio.Event().wait()

    monkeypatch.setattr(multipart, "DISCARD_SECONDS", 0.01)
    slow = stalled()
    with pytest.raises(InvalidRequest, match="malformed"):
        async with discarding_rest(slow):
            await read_form(slow, lambda part: None)


async def test_complete_form_is_returned_unchanged() -> None:
    messages = Counting([form(part("a", b"1")), b"epilogue"])
    async with discarding_rest(messages):
        await anext(messages)
    assert messages.count == 1


async def test_noise_is_refused_and_nothing_else_is_raised() -> None:
    chance = random.Random(11)  # noqa: S311
    words = [
        BOUNDARY.encode(),
        b"--",
        b"\r\n",
        b"Content-Disposition: form-data",
        b'; name="a"',
        b"\xff",
        b":",
        b"a",
        b"",
    ]
    for _ in range(3000):
        data = b"".join(chance.choice(words) for _ in range(chance.randrange(40)))
        if chance.random() < 0.5:
            data = f"--{BOUNDARY}\r\n".encode() + data
        try:
            found, _ = await read(data + (form() if chance.random() < 0.3 else b""), cuts=[len(data) // 2])
        except InvalidRequest:
            continue
        assert len(found.fields) <= multipart.MAX_PARTS


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
def test_neutral_values(value: str) -> None:
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


def test_fields_that_nobody_reads_are_known_by_name() -> None:
    names = ("text", "list[]", "object[x]", "number", "more", "more", "other[]", "empty", "nothing")
    fields = FormFields([*((name, "1") for name in names[:-2]), ("empty", " "), ("nothing", "null")])
    assert fields.unread() == ["text", "list[]", "object[x]", "number", "more", "other[]"]
    assert (fields.text("text"), fields.array("list"), fields.members("object")) == ("1", ["1"], {"x": "1"})
    assert (fields.number("number"), fields.choice("missing", ("a",), "a")) == (1, "a")
    assert fields.unread() == ["more", "other[]"]
    assert "2 times" in refused(FormFields([("a[x]", "1"), ("a[x]", "2")]).members)
