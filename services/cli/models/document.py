"""Converts messages to JSON for scripts: field names of the protos, enums as lower-case words, numbers as numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import timestamp_pb2
from google.protobuf.message import Message

from services.cli.models.words import enum_word


def document(message: Message) -> dict[str, Any]:
    """Converts a message. All fields are included, also with default values; absent messages are left out."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            found[field.name] = [_value(field.enum_type, each) for each in value]
        elif not field.has_presence or message.HasField(field.name):
            found[field.name] = _value(field.enum_type, value)
    return found


def documents(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Converts several messages."""
    return [document(message) for message in messages]


def print_document(content: Mapping[str, Any]) -> None:
    """Writes one JSON document to the standard output."""
    print(json.dumps(content, indent=2))


def _value(enum: Any, value: Any) -> Any:
    if enum is not None:
        return enum_word(enum, value)
    if isinstance(value, timestamp_pb2.Timestamp):
        return value.ToJsonString()
    return document(value) if isinstance(value, Message) else value
