"""The twelve codes: as documented, and the same in both wire formats."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from services import errors
from services.errors import (
    BY_CODE,
    MAX_MESSAGE_BYTES,
    AllmError,
    ContextLengthExceeded,
    Internal,
    InvalidRequest,
    ModelInvalid,
    ModelNotAllowed,
    ModelNotReady,
    OutOfMemory,
    Overloaded,
    RateLimited,
    RequestTooLarge,
    Unsupported,
    from_code,
)
from tests.case import case

DOCUMENTATION = Path(__file__).parents[1] / "docs/errors.md"


def table() -> dict[str, list[str]]:
    """Returns the other cells of each code's row in docs/errors.md."""
    rows = {}
    for line in DOCUMENTATION.read_text().splitlines():
        if line.startswith("| `"):
            code, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            rows[code.strip("`")] = cells
    return rows


def test_there_are_twelve_codes_and_each_is_documented() -> None:
    assert len(BY_CODE) == 12
    assert list(table()) == list(BY_CODE)


def test_status_and_type_are_the_documented_ones() -> None:
    for code in sorted(BY_CODE):
        with case(code=code):
            grpc_cell, http_cell, openai_cell, _ = table()[code]
            error = BY_CODE[code]("what is wrong")
            assert error.grpc_status.name == re.findall(r"`(\w+)`", grpc_cell)[0]
            assert error.http_status == int(re.findall(r"\d+", http_cell)[0])
            headers = error.headers()
            assert ("retry-after" in headers) == ("retry-after" in http_cell)
            assert (headers.get("x-should-retry") == "false") == ("x-should-retry: false" in http_cell)
            assert set(headers) <= {"retry-after", "x-should-retry"}
            if openai_cell != "-":  # a client that hung up reads no answer
                kind, names = openai_cell.split(" / ", 1)
                name, *others = names.split(", or ")
                assert error.openai_type == kind.strip("`")
                assert error.openai_code == (None if name == "null" else name.strip("`"))
                assert {f"`{kind.openai_code}`" for kind in _kinds(type(error))} >= set(others)


def _kinds(kind: type[AllmError]) -> set[type[AllmError]]:
    """Returns an error's class and its subclasses."""
    return {kind}.union(*map(_kinds, kind.__subclasses__()))


def test_exhausted_rate_is_reported_in_numbers() -> None:
    error = RateLimited("used up", retry_after=11, rates={"x-ratelimit-limit-tokens": "600"})
    assert (error.code, error.http_status, error.openai_code) == ("OVERLOADED", 429, "rate_limit_exceeded")
    assert error.headers() == {"retry-after": "11", "x-ratelimit-limit-tokens": "600"}


def test_a_model_that_is_not_allowed_is_forbidden_with_a_code_of_its_own() -> None:
    error = ModelNotAllowed("not for you", param="model")
    assert (error.code, error.http_status, error.grpc_status.name) == ("FORBIDDEN", 403, "PERMISSION_DENIED")
    assert error.openai_object()["code"] == "model_not_allowed"


def test_unsupported_parameter_is_reported_as_the_callers_error() -> None:
    grpc_cell, http_cell, *_ = table()["UNSUPPORTED"]
    error = Unsupported("'n' is not supported", param="n")
    assert error.grpc_status.name == re.findall(r"`(\w+)`", grpc_cell)[1]
    assert error.http_status == int(re.findall(r"\d+", http_cell)[1])
    assert Unsupported("no runtime").http_status == 501


def test_too_long_a_context_is_an_invalid_request_with_openais_own_code() -> None:
    error = ContextLengthExceeded("too long", param="messages")
    assert (error.code, error.http_status) == ("INVALID_REQUEST", 400)
    assert error.openai_object() == {
        "message": "too long",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    assert "context_length_exceeded" in table()["INVALID_REQUEST"][2]


def test_oversized_request_is_invalid_with_its_own_status() -> None:
    error = from_code("REQUEST_TOO_LARGE", "too large", "file")
    assert isinstance(error, RequestTooLarge)
    assert (error.code, error.http_status, error.grpc_status.name) == ("INVALID_REQUEST", 413, "OUT_OF_RANGE")
    assert error.openai_object() == {
        "message": "too large",
        "type": "invalid_request_error",
        "param": "file",
        "code": "request_too_large",
    }
    text = DOCUMENTATION.read_text()
    assert all(f"`{word}`" in text for word in ("OUT_OF_RANGE", "request_too_large"))


def test_the_openai_object_prints_null_for_absent_fields() -> None:
    assert InvalidRequest("x").openai_object() == {
        "message": "x",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (1.6, "2"), (30, "30")])
def test_retry_after_is_whole_seconds_and_never_zero(seconds: float, header: str) -> None:
    assert Overloaded("busy", retry_after=seconds).headers() == {"retry-after": header}
    assert ModelNotReady("loading", retry_after=seconds).headers() == {"retry-after": header}


def test_a_workers_code_becomes_its_error() -> None:
    for code in sorted(BY_CODE):
        with case(code=code):
            error = from_code(code, "said by the worker", "stop")
            assert type(error) is BY_CODE[code]
            assert error.message == str(error) == "said by the worker"
            assert error.param == ("stop" if code in ("INVALID_REQUEST", "UNSUPPORTED") else None)


def test_a_workers_context_refusal_keeps_its_parameter() -> None:
    error = from_code("CONTEXT_LENGTH_EXCEEDED", "too long", "max_tokens")
    assert type(error) is ContextLengthExceeded
    assert error.param == "max_tokens"


@pytest.mark.parametrize("code", ["", "internal", "SEGFAULT"])
def test_an_unknown_code_is_internal(code: str) -> None:
    assert type(from_code(code, "x")) is Internal


def test_every_error_class_is_one_of_the_twelve_or_refines_one() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AllmError)]
    for kind in kinds:
        if kind is not AllmError:
            assert BY_CODE[kind.code] in kind.__mro__, kind


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = re.findall(r"[├└]── (\w+) +([A-Z_]+) +(\d+)", errors.__doc__ or "")
    real = [(kind.__name__, kind("x").grpc_status.name, str(kind("x").http_status)) for kind in BY_CODE.values()]
    assert drawn == real


@pytest.mark.parametrize("letter", ["x", "é", "😀"])
def test_a_message_that_quotes_too_much_is_cut_to_what_headers_carry(letter: str) -> None:
    error = ModelInvalid(letter * 100_000)
    assert len(error.message.encode()) <= MAX_MESSAGE_BYTES + len("...")
    assert set(error.message.removesuffix("...")) == {letter}
    assert len(error.message) > 200
    assert str(error) == error.message
    exact = "x" * MAX_MESSAGE_BYTES
    assert OutOfMemory(exact).message == exact


def test_a_message_with_half_a_surrogate_pair_can_be_sent() -> None:
    assert InvalidRequest("bad \ud800 text").message.encode() == b"bad ? text"


def test_duplicate_is_reported_as_such_in_both_formats() -> None:
    error = errors.ModelExists("gpt-4o is taken: it is an alias of a", param="id")
    assert error.code == "INVALID_REQUEST"
    assert (error.grpc_status.name, error.http_status) == ("ALREADY_EXISTS", 409)
    assert error.openai_object() == {
        "message": "gpt-4o is taken: it is an alias of a",
        "type": "invalid_request_error",
        "param": "id",
        "code": "model_exists",
    }
