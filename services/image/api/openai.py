"""OpenAI's images: JSON bodies and forms are read and checked, responses and stream events are built.

Reference: https://platform.openai.com/docs/api-reference/images. An OpenAI parameter that allm cannot honour is refused
by name; an unknown parameter is ignored, and named in the response. Extensions: `seed`, `steps`,
`guidance`, `negative_prompt`, `scheduler`, and, with an image, `strength`.

Usage has OpenAI's fields with our own units: a text token is a token of the model's text encoder, an image token is
16x16 pixels.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec
from google.api import httpbody_pb2

from services.errors import InvalidRequest, Unsupported
from services.image.api import limits
from services.image.images import Gallery, PictureFile
from services.image.manager import TILE
from services.image.parameters import ImageRequest, OutputFormat, Quality, Task
from services.pictures.messages import FileKind
from services.rest.openai.body import decode
from services.rest.openai.multipart import FormFields

PREFIXES = {"generate": "image_generation", "edit": "image_edit", "vary": "image_edit"}
T = TypeVar("T")

ResponseFormat = Literal["b64_json", "url"]
# OpenAI's newer names and its older ones (standard, hd).
QUALITIES: Mapping[str, Quality] = {
    "auto": "auto",
    "low": "low",
    "medium": "medium",
    "standard": "medium",
    "high": "high",
    "hd": "high",
    "xhigh": "xhigh",
    "max": "max",
}
KINDS: Mapping[str, FileKind] = {"png": "png", "jpeg": "jpeg", "webp": "webp"}
RESPONSE_FORMATS: Mapping[str, ResponseFormat] = {"b64_json": "b64_json", "url": "url"}
# Not supported by any model here: other file types, planning, styles of older models, and `input_fidelity`, for which
# `strength` is the nearest substitute.
REFUSED = ("style", "svg", "frame_count", "frame_duration_ms", "complexity", "input_fidelity", "markup")
# Also missing from OpenAI's variations.
NOT_VARIED = ("prompt", "stream", "partial_images", "mask")
_SIZE = re.compile(r"([0-9]{1,5})x([0-9]{1,5})")


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


class Asked(msgspec.Struct, kw_only=True):
    """The parameters of all three endpoints."""

    model: str | None = None
    prompt: str | None = None
    n: int | None = None
    size: str | None = None
    quality: str | None = None
    response_format: str | None = None
    output_format: str | None = None
    output_compression: int | None = None
    background: str | None = None
    moderation: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    stream: bool | None = None
    partial_images: int | None = None
    seed: int | None = None
    steps: int | None = None
    guidance: float | None = None
    negative_prompt: str | None = None
    scheduler: str | None = None
    strength: float | None = None
    style: Any = None
    svg: Any = None
    frame_count: Any = None
    frame_duration_ms: Any = None
    complexity: Any = None
    input_fidelity: Any = None
    markup: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The requested form of the answer."""

    task: Task
    response_format: ResponseFormat = "b64_json"
    stream: bool = False
    quality: Quality | None = "auto"  # None: the request sets its steps
    safety_identifier: str = ""


def read_generation(body: httpbody_pb2.HttpBody) -> tuple[Answer, ImageRequest]:
    """Reads the body of POST /v1/images/generations.

    Raises:
        InvalidRequest: a wrong value, or mutually exclusive parameters; names them.
        Unsupported: a parameter cannot be honoured; names it.
    """
    asked = decode(body, Asked)
    if asked.strength is not None:
        raise InvalidRequest("'strength' needs an image to edit.", param="strength")
    return _read(asked, "generate", b"", b"")


def read_edit(fields: FormFields, image: bytes, mask: bytes) -> tuple[Answer, ImageRequest]:
    """Reads the form of POST /v1/images/edits; raises as `read_generation` does."""
    return _read(_asked(fields), "edit", image, mask)


def read_variation(fields: FormFields, image: bytes, mask: bytes) -> tuple[Answer, ImageRequest]:
    """Reads the form of POST /v1/images/variations; raises as `read_generation` does."""
    asked = _asked(fields)
    for name in NOT_VARIED:
        if getattr(asked, name, None) or (name == "mask" and mask):
            raise Unsupported(f"'{name}' is not supported for variations.", param=name)
    return _read(asked, "vary", image, b"")


def _asked(fields: FormFields) -> Asked:
    """Reads a form's fields."""
    integers = ("n", "output_compression", "partial_images", "seed", "steps")
    numbers = ("guidance", "strength")
    found: dict[str, Any] = {name: fields.integer(name) for name in integers}
    found |= {name: fields.number(name) for name in numbers}
    found |= {name: fields.array(name) or fields.members(name) for name in REFUSED}
    texts = set(Asked.__struct_fields__) - found.keys() - {"stream"}
    found |= {name: fields.text(name) or None for name in texts}
    return Asked(stream=fields.switch("stream"), **found)


def _read(asked: Asked, task: Task, image: bytes, mask: bytes) -> tuple[Answer, ImageRequest]:
    for name in REFUSED:
        if getattr(asked, name):
            raise Unsupported(f"'{name}' is not supported by this server.", param=name)
    _check_background(asked)
    _one_of("moderation", asked.moderation, {"auto": "auto", "low": "low"}, "auto")
    answer = _answer(asked, task)
    return answer, ImageRequest(
        model=limits.check_model(asked.model or ""),
        task=task,
        prompt="" if task == "vary" else limits.check_prompt(asked.prompt or ""),
        negative_prompt=limits.check_prompt(asked.negative_prompt or "", "negative_prompt", required=False),
        size=_read_size(asked.size),
        count=limits.check_count(asked.n, "n"),
        seed=limits.check_seed(asked.seed),
        steps=asked.steps,
        quality=answer.quality or "auto",
        guidance=asked.guidance,
        scheduler=asked.scheduler or "",
        strength=asked.strength,
        image=image,
        mask=mask,
        output=_output(asked),
        partials=limits.check_partials(asked.partial_images, "partial_images"),
    )


def _answer(asked: Asked, task: Task) -> Answer:
    stream = bool(asked.stream)
    form = _one_of("response_format", asked.response_format, RESPONSE_FORMATS, "b64_json")
    if stream and form == "url":
        raise Unsupported(
            "'response_format' url is not supported with 'stream': events carry b64_json.", param="stream"
        )
    if stream and (asked.n or 1) != 1:
        raise Unsupported("'stream' needs 'n' 1: events do not say which image they belong to.", param="n")
    if asked.partial_images and not stream:
        raise InvalidRequest("'partial_images' needs 'stream' true.", param="partial_images")
    quality = _one_of("quality", asked.quality, QUALITIES, "auto")
    if asked.steps is not None and quality != "auto":
        raise InvalidRequest("'quality' and 'steps' are mutually exclusive.", param="quality")
    return Answer(
        task=task,
        response_format=form,
        stream=stream,
        quality=None if asked.steps is not None else quality,
        safety_identifier=asked.safety_identifier or asked.user or "",
    )


def _output(asked: Asked) -> OutputFormat:
    if asked.output_format in ("gif", "svg"):
        message = f"'output_format' {asked.output_format} is not supported: png, jpeg and webp are."
        raise Unsupported(message, param="output_format")
    kind = _one_of("output_format", asked.output_format, KINDS, "png")
    return limits.check_output(kind, asked.output_compression, "output_compression")


def _check_background(asked: Asked) -> None:
    if asked.background == "transparent":
        raise Unsupported(
            "'background' transparent is not supported: this server's images have no alpha channel.", param="background"
        )
    _one_of("background", asked.background, {"auto": "auto", "opaque": "opaque"}, "auto")


def _read_size(size: str | None) -> tuple[int, int] | None:
    if not size or size == "auto":
        return None
    found = _SIZE.fullmatch(size)
    if not found:
        message = f"'size' must be 'auto' or a width and height such as '512x512', not {size[:40]!r}."
        raise InvalidRequest(message, param="size")
    return int(found[1]), int(found[2])


def _one_of(name: str, value: str | None, allowed: Mapping[str, T], default: T) -> T:
    if not value:
        return default
    if value not in allowed:
        raise InvalidRequest(f"'{name}' must be one of {', '.join(allowed)}, not {value[:40]!r}.", param=name)
    return allowed[value]
