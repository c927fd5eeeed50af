"""The examples of docs/errors.md: one for each code and protocol, compared with the code's real errors."""

from __future__ import annotations

import http
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.errors import BY_CODE, AllmError
from tests.case import case

DOCUMENTATION = Path(__file__).parents[1] / "docs/errors.md"
HANG_UP = 499  # nginx's; no standard status covers a client that hung up


def sections() -> dict[str, str]:
    """Returns each code's section."""
    parts = re.split(r"^### (\w+)$", DOCUMENTATION.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def block(code: str, kind: str) -> str:
    """Returns the only example of a kind."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```$", sections()[code], flags=re.MULTILINE | re.DOTALL)
    return str(found)


def raised(code: str, reported: Mapping[str, Any], headers: Mapping[str, str]) -> AllmError:
    """Returns the error of an example."""
    options: dict[str, Any] = {"param": reported["param"]} if reported["param"] else {}
    if "retry-after" in headers:
        options["retry_after"] = float(headers["retry-after"])
    return BY_CODE[code](reported["message"], **options)


def rest(code: str) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Returns status line, headers and error object of the REST example."""
    head, body = block(code, "http").split("\n\n", 1)
    line, *fields = head.splitlines()
    return line, dict(field.split(": ", 1) for field in fields), json.loads(body)["error"]


def test_every_code_has_a_section() -> None:
    assert list(sections()) == list(BY_CODE)
    assert all("**What to do:**" in text for text in sections().values())


def test_the_rest_example_is_real() -> None:
    for code in BY_CODE:
        with case(code=code):
            line, headers, reported = rest(code)
            error = raised(code, reported, headers)
            status = error.http_status
            phrase = "Client Closed Request" if status == HANG_UP else http.HTTPStatus(status).phrase
            assert line == f"HTTP/1.1 {status} {phrase}"
            assert reported == error.openai_object()
            assert headers == {"content-type": "application/json", **error.headers()}


def test_the_grpc_example_is_real_and_of_the_same_error() -> None:
    for code in BY_CODE:
        with case(code=code):
            _, headers, reported = rest(code)
            error = raised(code, reported, headers)
            example = dict(line.split(": ", 1) for line in block(code, "yaml").splitlines())
            assert example["status"] == error.grpc_status.name
            assert json.loads(example["message"]) == error.message
            info = dict(field.split(": ") for field in example["google.rpc.ErrorInfo"].strip("{}").split(", "))
            assert (info["reason"], info["domain"], info.get("param")) == (code, "allm", error.param)
            assert info["request_id"]
