"""OpenAI's Chat Completions: the content of messages, as a text or as parts."""

from __future__ import annotations

import msgspec

from services.errors import Unsupported
from services.text.conversation import Picture
from services.text.picture_urls import GivenDetail, picture_of


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    """A content part with plain text."""

    text: str | None


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal"):
    """A content part with the assistant's refusal."""

    refusal: str | None


class ImageUrl(msgspec.Struct):
    """The address of a picture, often a data URL."""

    url: str
    detail: GivenDetail | None = None


class ImagePart(msgspec.Struct, tag_field="type", tag="image_url"):
    """A content part with a picture."""

    image_url: ImageUrl


class AudioPart(msgspec.Struct, tag_field="type", tag="input_audio"):
    """An audio content part; no text model here supports it."""


class FilePart(msgspec.Struct, tag_field="type", tag="file"):
    """A file content part; no text model here supports it."""


ContentPart = TextPart | RefusalPart | ImagePart | AudioPart | FilePart


def content_of(content: str | list[ContentPart] | None, param: str) -> tuple[str, tuple[Picture, ...]]:
    """Returns the text of a content, and its pictures.

    Raises:
        InvalidRequest: a picture's address is malformed.
        Unsupported: a part is neither text nor a picture.
    """
    if content is None or isinstance(content, str):
        return content or "", ()
    text, pictures = "", []
    for at, part in enumerate(content):
        if isinstance(part, TextPart):
            text += part.text or ""
        elif isinstance(part, RefusalPart):
            text += part.refusal or ""
        elif isinstance(part, ImagePart):
            image = part.image_url
            pictures.append(picture_of(image.url, f"{param}[{at}].image_url.url", len(text), image.detail))
        else:
            kind = part.__struct_config__.tag
            raise Unsupported(f"'{param}[{at}]': content of type '{kind}' is not supported.", param=f"{param}[{at}]")
    return text, tuple(pictures)
