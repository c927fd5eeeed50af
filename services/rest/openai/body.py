"""JSON bodies: decoded into structs with errors that name the parameter, encoded as google.api.HttpBody."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from google.api import httpbody_pb2

from services.errors import InvalidRequest

T = TypeVar("T")

JSON = "application/json"
_encode = msgspec.json.Encoder().encode
# msgspec's messages quote values of the request: match only its own words, at the start and end.
_AT = re.compile(r" - at (?:`key` in )?`\$?\.?([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def decode(body: httpbody_pb2.HttpBody, kind: type[T]) -> T:
    """Decodes a body as `kind`. Ignores unknown parameters, as OpenAI's clients expect.

    Raises:
        InvalidRequest: no JSON, not an object, or a parameter of the wrong type; `param` names it.
    """
    if not body.data:
        raise InvalidRequest("the request has no body; a JSON object is expected")
    try:
        return msgspec.json.decode(body.data, type=kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply") from error


def convert(value: Any, kind: type[T], param: str) -> T:
    """Converts a part of a decoded body, at `param`, to `kind`. Raises InvalidRequest, with the whole path."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error), param) from error


def json_body(value: Any) -> httpbody_pb2.HttpBody:
    """Returns a complete JSON response, including null fields."""
    return httpbody_pb2.HttpBody(content_type=JSON, data=_encode(value))


def _explain(message: str, within: str = "") -> InvalidRequest:
    """Converts msgspec's message into one about the parameter; `within` is the path of its parent."""
    at = _AT.search(message)
    path = at.group(1) if at else ""
    if within:
        path = f"{within}.{path}" if path and not path.startswith("[") else f"{within}{path}"
    missing = _MISSING.match(message)
    if missing:
        param = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return InvalidRequest(f"Missing required parameter: '{param}'.", param=param)
    what = message[: at.start()] if at else message
    if not path:
        return InvalidRequest(f"the body must be a JSON object: {what}")
    return InvalidRequest(f"Invalid type or value for '{path}': {what[:1].lower()}{what[1:]}.", param=path)
