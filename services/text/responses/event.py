"""What happens while a response is made. The place of an event in its stream is its sequence number."""

from __future__ import annotations

from typing import Literal

import msgspec

from services.text.engine.messages import TokenLogprob
from services.text.responses.item import Item
from services.text.responses.response import Response


class Progress(msgspec.Struct, frozen=True, tag=True):
    """The response has come to `step`; each of the last three ends the stream."""

    step: Literal["created", "queued", "in_progress", "completed", "incomplete", "failed"]
    response: Response


class ItemAdded(msgspec.Struct, frozen=True, tag=True):
    """An item of the output begins, as yet empty."""

    index: int  # in the output
    item: Item


class ItemDone(msgspec.Struct, frozen=True, tag=True):
    """An item of the output is whole, or was cut off."""

    index: int
    item: Item


class PartAdded(msgspec.Struct, frozen=True, tag=True):
    """The content of a message or of thoughts begins. Either has one part here."""

    index: int
    item: Item


class PartDone(msgspec.Struct, frozen=True, tag=True):
    """The content of a message or of thoughts is whole; `item` holds it."""

    index: int
    item: Item


class Delta(msgspec.Struct, frozen=True, tag=True):
    """More of an item: of a message's text, of thoughts, or of a call's arguments."""

    index: int
    kind: Literal["text", "reasoning", "arguments"]
    item: str  # its id
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class DeltaDone(msgspec.Struct, frozen=True, tag=True):
    """All that the deltas of an item came to."""

    index: int
    kind: Literal["text", "reasoning", "arguments"]
    item: str
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


Event = Progress | ItemAdded | ItemDone | PartAdded | PartDone | Delta | DeltaDone
