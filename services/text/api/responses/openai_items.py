"""OpenAI's Responses: items of requests, converted to the core's items or rejected by name.

Null and unknown fields of items are accepted, because clients send back what they got.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from services.errors import InvalidRequest, Unsupported
from services.rest.openai import body
from services.text.picture_urls import GivenDetail, check_url, detail_of
from services.text.responses.response import (
    FunctionCallItem,
    FunctionOutputItem,
    Item,
    ItemReference,
    ItemStatus,
    MessageItem,
    MessageRole,
    Part,
    ReasoningItem,
    given_id,
    new_id,
)

# Kinds of content parts in requests.
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


class MessageBody(msgspec.Struct):
    """A message; `type` may be missing."""

    role: MessageRole
    content: str | list[dict[str, Any]]
    id: str | None = None
    status: ItemStatus | None = None


class ReasoningBody(msgspec.Struct):
    """Reasoning of a model from an earlier answer. `encrypted_content` from other servers is ignored."""

    summary: list[dict[str, Any]] = []
    content: list[dict[str, Any]] | None = None
    id: str | None = None
    status: ItemStatus | None = None


class FunctionCallBody(msgspec.Struct):
    """A function call by the model."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    id: str | None = None
    status: ItemStatus | None = None


class FunctionOutputBody(msgspec.Struct):
    """The result of a function call."""

    call_id: str
    output: str | list[dict[str, Any]] | None
    id: str | None = None
    status: ItemStatus | None = None


class ImageBody(msgspec.Struct):
    """A picture. `file_id` is declared only to be rejected."""

    image_url: str | None = None
    detail: GivenDetail | None = None
    file_id: str | None = None


class ReferenceBody(msgspec.Struct):
    """A reference to an item of a stored response."""

    id: str


def items_of(given: str | Sequence[Mapping[str, Any]], param: str = "input") -> tuple[Item | ItemReference, ...]:
    """Converts a request's input to the core's items; a string becomes a user message. `param`: its name in errors.

    Raises:
        InvalidRequest: an item does not match its type; the error names its path.
        Unsupported: no text model here supports the type of an item or of a content part.
    """
    if isinstance(given, str):
        return (MessageItem(id=new_id("msg"), role="user", content=(Part(text=given),)),)
    return tuple(_read_item(one, f"{param}[{at}]") for at, one in enumerate(given))


def _read_item(given: Mapping[str, Any], param: str) -> Item | ItemReference:
    kind = given.get("type") or ("message" if "role" in given else "item_reference")
    if kind == "message":
        return _read_message(body.convert(given, MessageBody, param), param)
    if kind == "item_reference":
        return ItemReference(id=given_id(body.convert(given, ReferenceBody, param).id, "msg", param))
    if kind == "reasoning":
        thought = body.convert(given, ReasoningBody, param)
        summary = [_read_text([part], f"{param}.summary[{at}]") for at, part in enumerate(thought.summary)]
        text = _read_text(thought.content or [], f"{param}.content")
        status = thought.status or "completed"
        return ReasoningItem(id=given_id(thought.id, "rs", param), text=text, summary=tuple(summary), status=status)
    if kind == "function_call":
        call = body.convert(given, FunctionCallBody, param)
        return FunctionCallItem(
            id=given_id(call.id, "fc", param),
            call_id=given_id(call.call_id, "fc", param),
            name=call.name,
            arguments=call.arguments,
            namespace=call.namespace or "",
            status=call.status or "completed",
        )
    if kind == "function_call_output":
        result = body.convert(given, FunctionOutputBody, param)
        parts = _read_parts(result.output or "", f"{param}.output")
        seen = any(part.image_url for part in parts)
        return FunctionOutputItem(
            id=given_id(result.id, "fco", param),
            call_id=given_id(result.call_id, "fco", param),
            output="" if seen else "".join(part.text for part in parts),
            parts=parts if seen else (),
            status=result.status or "completed",
        )
    raise Unsupported(f"'{param}': items of type {_quoted(kind)} are not supported.", param=param)


def _read_message(message: MessageBody, param: str) -> MessageItem:
    return MessageItem(
        id=given_id(message.id, "msg", param),
        role=message.role,
        content=_read_parts(message.content, f"{param}.content"),
        status=message.status or "completed",
    )


def _read_text(content: Sequence[Mapping[str, Any]], param: str) -> str:
    return "".join(_read_part(part, f"{param}[{at}]").text for at, part in enumerate(content))


def _read_parts(content: str | Sequence[Mapping[str, Any]], param: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Part(text=content),)
    return tuple(
        _read_image(part, f"{param}[{at}]") if part.get("type") == "input_image" else _read_part(part, f"{param}[{at}]")
        for at, part in enumerate(content)
    )


def _read_image(given: Mapping[str, Any], param: str) -> Part:
    image = body.convert(given, ImageBody, param)
    if image.file_id:
        raise Unsupported(f"'{param}.file_id': this server keeps no files of callers.", param=f"{param}.file_id")
    if not image.image_url:
        raise InvalidRequest(f"Missing required parameter: '{param}.image_url'.", param=f"{param}.image_url")
    check_url(image.image_url, f"{param}.image_url")
    return Part(text="", image_url=image.image_url, detail=detail_of(image.detail))


def _read_part(part: Mapping[str, Any], param: str) -> Part:
    kind = part.get("type")
    key = "refusal" if kind == "refusal" else "text"
    if kind not in (*_TEXT_PARTS, "refusal"):
        if kind is None:
            raise InvalidRequest(f"Missing required parameter: '{param}.type'.", param=f"{param}.type")
        raise Unsupported(f"'{param}': content of type {_quoted(kind)} is not supported.", param=param)
    text = part.get(key)
    if not isinstance(text, str):
        raise InvalidRequest(f"'{param}.{key}' must be a string.", param=f"{param}.{key}")
    return Part(text=text, refusal=kind == "refusal")


def _quoted(kind: object) -> str:
    return repr(str(kind)[:40])
