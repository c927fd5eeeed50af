"""The JSON encoding of responses, items and events, which all stores share."""

from __future__ import annotations

import msgspec

from services.text.responses.event import Event
from services.text.responses.item import Item
from services.text.responses.response import Failure, Response

encode = msgspec.json.Encoder().encode
response_of = msgspec.json.Decoder(Response).decode
failure_of = msgspec.json.Decoder(Failure).decode
item_of = msgspec.json.Decoder[Item](Item).decode
event_of = msgspec.json.Decoder[Event](Event).decode


def body_of(response: Response) -> bytes:
    """Encodes a response without its output: items are stored separately, so that each is written once."""
    return encode(msgspec.structs.replace(response, output=()))
