"""The events of a response. The sequence number of an event is its position in the stream."""

from __future__ import annotations

from typing import Literal

import msgspec

from services.text.engine.messages import TokenLogprob
from services.text.responses.item import Item
from services.text.responses.response import Response


class Progress(msgspec.Struct, frozen=True, tag=True):
    """The response has reached `step`; each of the last three steps ends the stream."""

    step: Literal["created", "queued", "in_progress", "completed", "incomplete", "failed"]
    response: Response


class ItemAdded(msgspec.Struct, frozen=True, tag=True):
    """An output item begins; it is still empty."""

    index: int  # in the output
    item: Item


class ItemDone(msgspec.Struct, frozen=True, tag=True):
    """An output item is complete, or was cut off."""

    index: int
    item: Item


class PartAdded(msgspec.Struct, frozen=True, tag=True):
    """The content of a message or of reasoning begins. Each has exactly one part here."""

    index: int
    item: Item


class PartDone(msgspec.Struct, frozen=True, tag=True):
    """The content of a message or of reasoning is complete; `item` holds it."""

    index: int
    item: Item


class Delta(msgspec.Struct, frozen=True, tag=True):
    """More text of an item: of a message, of reasoning, or of a call's arguments."""

    index: int
    kind: Literal["text", "reasoning", "arguments"]
    item: str  # its id
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class DeltaDone(msgspec.Struct, frozen=True, tag=True):
    """The concatenated deltas of an item."""

    index: int
    kind: Literal["text", "reasoning", "arguments"]
    item: str
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


Event = Progress | ItemAdded | ItemDone | PartAdded | PartDone | Delta | DeltaDone
