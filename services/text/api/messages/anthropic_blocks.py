"""Anthropic's Messages: the blocks of a message, converted to the core's messages."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from services.errors import InvalidRequest, Unsupported
from services.rest.openai import body
from services.text.api.openai_sampling import refuse_others
from services.text.conversation import Message, Picture, ToolCall
from services.text.picture_urls import picture_of

Blocks = str | list[dict[str, Any]]
_Placed = tuple[str, Mapping[str, Any]]  # a block, after its name in errors
# What a model reads before the result of a tool that failed.
FAILED = "Error: "
_APART = "\n\n"  # between blocks of text, and between consecutive messages of the same role


class MessageBody(msgspec.Struct):
    """One message of the request."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class TextBlock(msgspec.Struct):
    """A block with plain text."""

    text: str


class ImageSource(msgspec.Struct):
    """A picture: a file in base64, or an address. A file of the Files API is declared only to be rejected."""

    type: Literal["base64", "url", "file"]
    data: str | None = None
    media_type: str | None = None
    url: str | None = None


class ImageBlock(msgspec.Struct):
    """A block with a picture. An oversized one is always scaled down, as is the default of `transformations`."""

    source: ImageSource
    transformations: dict[str, Any] | None = None


class ThinkingBlock(msgspec.Struct):
    """A block with the model's reasoning, from an earlier answer."""

    thinking: str


class ToolUseBlock(msgspec.Struct):
    """A call of a tool, from an earlier answer."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(msgspec.Struct):
    """The result of a call."""

    tool_use_id: str
    content: Blocks | None = None
    is_error: bool | None = None


def joined(first: Message, second: Message, apart: str = _APART) -> Message:
    """Returns one message for two; `apart` is put between their texts."""
    content = apart.join(filter(None, (first.content, second.content)))
    before = len(content) - len(second.content)
    pictures = [dataclasses.replace(picture, at=before + picture.at) for picture in second.pictures]
    reasoning = _APART.join(filter(None, (first.reasoning, second.reasoning)))
    return dataclasses.replace(
        first,
        content=content,
        pictures=(*first.pictures, *pictures),
        reasoning=reasoning,
        tool_calls=second.tool_calls,
    )


def turns(message: MessageBody, param: str) -> Iterator[Message]:
    """Yields the core's messages for one of Anthropic's: results of tools are messages of their own there."""
    content = message.content
    if isinstance(content, str):
        yield Message(role=message.role, content=content)
    elif message.role == "assistant":
        yield _answer(content, f"{param}.content")
    elif message.role == "system":
        yield Message(role="system", content=text_of(content, f"{param}.content"))
    else:
        yield from _user(content, f"{param}.content")


def _user(blocks: list[dict[str, Any]], param: str) -> Iterator[Message]:
    own: list[_Placed] = []  # not results
    for where, block in _placed(blocks, param):
        if block.get("type") != "tool_result":
            own.append((where, block))
            continue
        if own:
            yield _message("user", own)
            own = []
        result = body.convert(block, ToolResultBlock, where)
        message = _message("tool", _placed(result.content or "", f"{where}.content"))
        if result.is_error:
            message = joined(Message(role="tool", content=FAILED), message, apart="")
        yield dataclasses.replace(message, tool_call_id=result.tool_use_id)
    if own or not blocks:
        yield _message("user", own)


def _answer(blocks: Sequence[Mapping[str, Any]], param: str) -> Message:
    texts, thoughts, calls = [], [], []
    for at, block in enumerate(blocks):
        where, kind = f"{param}[{at}]", block.get("type")
        if kind == "thinking":
            thoughts.append(body.convert(block, ThinkingBlock, where).thinking)
        elif kind == "tool_use":
            use = body.convert(block, ToolUseBlock, where)
            calls.append(ToolCall(id=use.id, name=use.name, arguments=_json(use.input, f"{where}.input")))
        elif kind != "redacted_thinking":  # Anthropic's secret
            texts.append(_text([(where, block)]))
    return Message(role="assistant", content="".join(texts), reasoning="".join(thoughts), tool_calls=tuple(calls))


def _json(value: Mapping[str, Any], param: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise InvalidRequest(f"'{param}' is nested too deeply.", param=param) from error


def text_of(content: Blocks, param: str) -> str:
    """Returns the text of a content that has no place for pictures. Raises Unsupported if it has any."""
    return _text(_placed(content, param))


def _placed(content: Blocks, param: str) -> list[_Placed]:
    if isinstance(content, str):
        return [(param, {"type": "text", "text": content})]
    return [(f"{param}[{at}]", block) for at, block in enumerate(content)]


def _text(blocks: Sequence[_Placed]) -> str:
    message = _message("user", blocks)
    if message.pictures:
        param = message.pictures[0].param
        raise Unsupported(f"'{param}': pictures are only supported in the user's messages.", param=param)
    return message.content


def _message(role: Literal["user", "tool"], blocks: Sequence[_Placed]) -> Message:
    """Converts blocks of text and pictures. A picture parts the texts around it, so nothing else does."""
    text, apart = "", ""
    pictures: list[Picture] = []
    for where, block in blocks:
        kind = block.get("type")
        if kind is None:
            raise InvalidRequest(f"Missing required parameter: '{where}.type'.", param=f"{where}.type")
        if kind == "image":
            pictures.append(_picture(body.convert(block, ImageBlock, where), where, len(text)))
            apart = ""
        elif kind == "text":
            text += apart + body.convert(block, TextBlock, where).text
            apart = _APART
        else:
            reason = f"only text and images are supported here; blocks of type {str(kind)[:40]!r} are not."
            raise Unsupported(f"'{where}': {reason}", param=where)
    return Message(role=role, content=text, pictures=tuple(pictures))


def _picture(block: ImageBlock, where: str, at: int) -> Picture:
    source, param = block.source, f"{where}.source"
    refuse_others(((f"{where}.transformations", block.transformations, ({}, {"oversized_image": "downsize"})),))
    if source.type == "file":
        raise Unsupported(f"'{param}': files of the Files API are not supported.", param=param)
    given = source.data if source.type == "base64" else source.url
    name = f"{param}.{'data' if source.type == 'base64' else 'url'}"
    if not given:
        raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name)
    return picture_of(f"data:;base64,{given}" if source.type == "base64" else given, name, at)
