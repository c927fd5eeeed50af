"""JSON bodies: decoded into structs with errors that name the parameter, encoded as google.api.HttpBody.

The core has its own parameter names; errors show those of the REST API.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from google.api import httpbody_pb2

from services.errors import AllmError, InvalidRequest
from services.rpc.call import Call

T = TypeVar("T")
JSON = "application/json"
PIECE_BYTES = 512 * 1024  # of a long response, in one message
_encode = msgspec.json.Encoder().encode
_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_raw_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
# msgspec's messages quote values of the request: match only its own words, at the start and end.
_AT = re.compile(r" - at (?:`key` in )?`\$?\.?([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `(\w+)`")


@contextmanager
def called(names: Mapping[str, str]) -> Iterator[None]:
    """Renames the parameter, or its parent, of errors that leave the block, as given by `names`."""
    try:
        yield
    except AllmError as error:
        param = error.param or ""
        for name, other in names.items():
            if param == name or param.startswith((f"{name}.", f"{name}[")):
                error.param = other + param[len(name) :]
                error.message = error.message.replace(f"'{name}", f"'{other}")
                break
        raise


@contextmanager
def _explained() -> Iterator[None]:
    """Converts the errors of decoding a body to InvalidRequest."""
    try:
        yield
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply") from error


def decode(body: httpbody_pb2.HttpBody, kind: type[T], most: Mapping[str, int] = MappingProxyType({})) -> T:
    """Decodes a body as `kind`, without its unknown parameters, which `undeclared` returns.

    `most`: how many entries some of its lists may have, by name. A body with more is refused before it is converted:
    a million messages take seconds.

    Raises:
        InvalidRequest: no JSON, not an object, or a parameter of the wrong type; `param` names it.
    """
    if not body.data:
        raise InvalidRequest("the request has no body; a JSON object is expected")
    with _explained():
        _check_counts(body.data, most)
        return msgspec.json.decode(body.data, type=kind)


def undeclared(body: httpbody_pb2.HttpBody, kind: type[msgspec.Struct]) -> dict[str, msgspec.Raw]:
    """Returns the parameters of a body that `kind` does not declare, except null ones. Raises as `decode`."""
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    with _explained():
        found = _raw_object(body.data)
    return {name: value for name, value in found.items() if name not in known and bytes(value) != b"null"}


def _check_counts(data: bytes, most: Mapping[str, int]) -> None:
    """Raises InvalidRequest for a list of more than `most` entries. Leaves what else may be wrong to the decoder."""
    if len(data) <= 2 * min(most.values(), default=len(data)):  # an entry has a digit and a comma
        return
    values = _raw_object(data)
    for name, limit in most.items():
        value = memoryview(values.get(name, b""))
        if value[:1].tobytes() == b"[" and (count := len(_raw_list(value))) > limit:
            raise InvalidRequest(f"'{name}' has {count} entries; at most {limit} are allowed.", param=name)


def convert(value: Any, kind: type[T], param: str) -> T:
    """Converts a part of a decoded body, at `param`, to `kind`. Raises InvalidRequest, with the whole path."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error), param) from error


def json_body(value: Any) -> httpbody_pb2.HttpBody:
    """Returns a complete JSON response, including null fields."""
    return httpbody_pb2.HttpBody(content_type=JSON, data=_encode(value))


async def send_body(call: Call, kind: str, data: bytes) -> None:
    """Sends a whole response of the content type `kind` in pieces; an empty response is one message, too."""
    for start in range(0, max(1, len(data)), PIECE_BYTES):
        await call.send(httpbody_pb2.HttpBody(content_type=kind, data=data[start : start + PIECE_BYTES]))


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
