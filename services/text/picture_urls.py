"""Pictures as text: data URLs, which hold the file in base64, and addresses."""

from __future__ import annotations

import asyncio
import binascii
import re
from dataclasses import replace
from typing import Literal

from services.errors import InvalidRequest
from services.text.conversation import Detail, Picture

GivenDetail = Literal["auto", "low", "high", "original"]  # of a caller
MAX_ADDRESS = 8_192  # characters of an address that is not a data URL
_DATA_URL = re.compile(r"data:[^,]{0,256};base64,", re.IGNORECASE)
_SLICE = 256 * 1024  # characters of base64 that are decoded at once, a multiple of 4: about a millisecond
_SIGNATURES = ((b"\x89PNG", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF8", "gif"), (b"RIFF", "webp"))


def picture_of(url: str, param: str, at: int, detail: GivenDetail | None = None) -> Picture:
    """Returns the picture at a data URL, which `decoded` decodes, or at another address. `param`: the address's name.

    Raises:
        InvalidRequest: it is neither.
    """
    check_url(url, param)
    return Picture(at=at, param=param, url=url, detail=detail_of(detail))


def detail_of(given: GivenDetail | None) -> Detail:
    """Converts a caller's detail; `original` is a value of OpenAI's, and more than `high` is never looked at."""
    return "high" if given == "original" else given or "auto"


def check_url(url: str, param: str) -> None:
    """Raises InvalidRequest for a text that is neither a data URL with base64 nor an address."""
    if url[:5].lower() == "data:":
        if not _DATA_URL.match(url):
            message = f"'{param}' is not a data URL in base64, such as 'data:image/png;base64,iVBORw0...'."
            raise InvalidRequest(message, param=param)
    elif len(url) > MAX_ADDRESS:
        raise InvalidRequest(f"'{param}' is an address of more than {MAX_ADDRESS} characters.", param=param)
    elif "://" not in url and not url.startswith("/"):
        message = f"'{param}' is neither an address nor a data URL, such as 'data:image/png;base64,iVBORw0...'."
        raise InvalidRequest(message, param=param)


def data_url(file: bytes) -> str:
    """Returns a picture's file as a data URL."""
    kind = next((name for start, name in _SIGNATURES if file.startswith(start)), "")
    media_type = f"image/{kind}" if kind else "application/octet-stream"
    return f"data:{media_type};base64,{binascii.b2a_base64(file, newline=False).decode()}"


def file_of(url: str) -> bytes | None:
    """Returns the file in a data URL; None: it is another address. Raises ValueError for invalid base64."""
    if not (head := _DATA_URL.match(url)):
        return None
    # In slices, because the interpreter runs nothing else while it decodes one.
    found = [
        binascii.a2b_base64(url[start : start + _SLICE], strict_mode=True)
        for start in range(head.end(), len(url), _SLICE)
    ]
    return b"".join(found)


async def decoded(picture: Picture) -> Picture:
    """Returns a picture with its file, if its address is a data URL. Raises InvalidRequest for invalid base64."""
    if picture.data or picture.url[:5].lower() != "data:":
        return picture
    try:
        if len(picture.url) > _SLICE:
            file = await asyncio.to_thread(file_of, picture.url)
        else:
            file = file_of(picture.url)
    except ValueError as error:  # binascii.Error, or characters beyond ASCII
        raise InvalidRequest(f"'{picture.param}' is not valid base64: {error}.", param=picture.param) from error
    if not file:
        raise InvalidRequest(f"'{picture.param}' is an empty file.", param=picture.param)
    return replace(picture, data=file, url="")
