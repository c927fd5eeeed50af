"""OpenAI's image answers: whole responses and stream events.

Usage has OpenAI's fields with our own units: a text token is a token of the model's text encoder, an image token is
16x16 pixels.
"""

from __future__ import annotations

import base64
import time
from typing import Any

from services.image.api.gallery import Gallery
from services.image.api.openai_request import Answer
from services.image.images import Drawn, Finished, Partial
from services.image.loaded import TILE
from services.image.recipe import Parameters

PREFIXES = {"generate": "image_generation", "edit": "image_edit", "vary": "image_edit"}


def response_object(gallery: Gallery, answer: Answer, urls: list[str]) -> dict[str, Any]:
    """Builds a whole response; `urls` are its pictures' URLs, empty for base64. The `seed` fields are an extension."""
    drawn = gallery.pictures
    found: dict[str, Any] = {
        "created": int(time.time()),
        "background": "opaque",
        "data": [
            {"url": urls[at], "seed": each.seed} if urls else {"b64_json": base64_of(each), "seed": each.seed}
            for at, each in enumerate(drawn)
        ],
        "output_format": drawn[0].kind,
        "size": _size(drawn[0]),
        "usage": usage_object(gallery.finished, gallery.started.parameters, answer, len(drawn)),
    }
    if answer.quality:  # None if the request sets its steps; `auto` is the same as `medium`
        found["quality"] = "medium" if answer.quality == "auto" else answer.quality
    if answer.safety_identifier:
        found["safety_identifier"] = answer.safety_identifier
    return found


def partial_event(partial: Partial, answer: Answer) -> tuple[str, dict[str, Any]]:
    """Returns the name and object of a preview event."""
    name = f"{PREFIXES[answer.task]}.partial_image"
    return name, _event(name, partial.drawn, answer) | {"partial_image_index": partial.number}


def completed_event(drawn: Drawn, gallery: Gallery, answer: Answer) -> tuple[str, dict[str, Any]]:
    """Returns the name and object of the event with the finished picture."""
    name = f"{PREFIXES[answer.task]}.completed"
    event = _event(name, drawn, answer)
    event["usage"] = usage_object(gallery.finished, gallery.started.parameters, answer, 1)
    event["seed"] = drawn.seed
    if answer.safety_identifier:
        event["safety_identifier"] = answer.safety_identifier
    return name, event


def usage_object(finished: Finished, drawn: Parameters, answer: Answer, count: int) -> dict[str, Any]:
    """Builds the usage object in OpenAI's fields; an input image counts as input tokens."""
    tiles = -(-drawn.width // TILE) * -(-drawn.height // TILE)
    given = 0 if answer.task == "generate" else tiles
    text = finished.prompt_tokens
    return {
        "input_tokens": text + given,
        "input_tokens_details": {"image_tokens": given, "text_tokens": text},
        "output_tokens": tiles * count,
        "output_tokens_details": {"image_tokens": tiles * count, "text_tokens": 0},
        "total_tokens": text + given + tiles * count,
    }


def base64_of(drawn: Drawn) -> str:
    """Returns a picture's file as base64."""
    return base64.b64encode(drawn.data).decode()


def _event(name: str, drawn: Drawn, answer: Answer) -> dict[str, Any]:
    return {
        "type": name,
        "b64_json": base64_of(drawn),
        "background": "opaque",
        "created_at": int(time.time()),
        "output_format": drawn.kind,
        "quality": answer.quality or "auto",
        "size": _size(drawn),
    }


def _size(drawn: Drawn) -> str:
    return f"{drawn.width}x{drawn.height}"
