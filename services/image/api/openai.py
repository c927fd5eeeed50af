"""OpenAI's image answers: whole responses and stream events.

Usage has OpenAI's fields with our own units: a text token is a token of the model's text encoder, an image token is
16x16 pixels.
"""

from __future__ import annotations

import base64
import time
from typing import Any

from services.image.api.openai_request import Answer
from services.image.images import Gallery, PictureFile
from services.image.loaded import TILE

PREFIXES = {"generate": "image_generation", "edit": "image_edit", "vary": "image_edit"}


def response_object(gallery: Gallery, answer: Answer, urls: list[str]) -> dict[str, Any]:
    """Builds a whole response; `urls` are its pictures' URLs, empty for base64. The `seed` fields are an extension."""
    pictures = gallery.pictures
    found: dict[str, Any] = {
        "created": int(time.time()),
        "background": "opaque",
        "data": [
            {"url": urls[at], "seed": each.seed} if urls else {"b64_json": base64_of(each), "seed": each.seed}
            for at, each in enumerate(pictures)
        ],
        "output_format": pictures[0].kind,
        "size": _size(pictures[0]),
        "usage": usage_object(gallery, answer, len(pictures)),
    }
    if answer.quality:  # None if the request sets its steps; `auto` is the same as `medium`
        found["quality"] = "medium" if answer.quality == "auto" else answer.quality
    if answer.safety_identifier:
        found["safety_identifier"] = answer.safety_identifier
    return found


def partial_event(partial: PictureFile, answer: Answer) -> tuple[str, dict[str, Any]]:
    """Returns the name and object of a preview event."""
    name = f"{PREFIXES[answer.task]}.partial_image"
    return name, _event(name, partial, answer) | {"partial_image_index": partial.partial}


def completed_event(picture: PictureFile, gallery: Gallery, answer: Answer) -> tuple[str, dict[str, Any]]:
    """Returns the name and object of the event with the finished picture."""
    name = f"{PREFIXES[answer.task]}.completed"
    event = _event(name, picture, answer)
    event["usage"] = usage_object(gallery, answer, 1)
    event["seed"] = picture.seed
    if answer.safety_identifier:
        event["safety_identifier"] = answer.safety_identifier
    return name, event


def usage_object(gallery: Gallery, answer: Answer, count: int) -> dict[str, Any]:
    """Builds the usage object in OpenAI's fields; an input image counts as input tokens."""
    size = gallery.started.parameters
    tiles = -(-size.width // TILE) * -(-size.height // TILE)
    given = 0 if answer.task == "generate" else tiles
    text = gallery.started.prompt_tokens
    return {
        "input_tokens": text + given,
        "input_tokens_details": {"image_tokens": given, "text_tokens": text},
        "output_tokens": tiles * count,
        "output_tokens_details": {"image_tokens": tiles * count, "text_tokens": 0},
        "total_tokens": text + given + tiles * count,
    }


def base64_of(picture: PictureFile) -> str:
    """Returns a picture's file as base64."""
    return base64.b64encode(picture.data).decode()


def _event(name: str, picture: PictureFile, answer: Answer) -> dict[str, Any]:
    return {
        "type": name,
        "b64_json": base64_of(picture),
        "background": "opaque",
        "created_at": int(time.time()),
        "output_format": picture.kind,
        "quality": answer.quality or "auto",
        "size": _size(picture),
    }


def _size(picture: PictureFile) -> str:
    return f"{picture.width}x{picture.height}"
