"""The check of pictures: a model that sees tells them apart and names their colours; any other model refuses them."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Sequence

from allm.text.v1 import chat_pb2

from services.cli.models.connection import CallRefused
from services.cli.verify.check import Check, CheckFailed
from services.cli.verify.sameness import difference, first_difference
from services.cli.verify.subject import USER, Request, Subject, SubjectAnswer

TOKENS = 12
SIDE = 256  # pixels of a picture: a square of half the side on a white background
COLOURS = {"red": (220, 40, 40), "green": (40, 160, 60), "blue": (40, 70, 210), "yellow": (240, 210, 40)}
MISSES = 1  # colours that a model may name wrongly
QUESTION = "What color is the square?"
PNG = "data:image/png;base64,"


def _look(subject: Subject) -> str:
    if "vision" not in subject.model.capabilities:
        return _refused(subject)
    red, blue = (_request([_square(COLOURS[name])]) for name in ("red", "blue"))
    alone = [subject.ask(red), subject.ask(blue)]
    tokens = _count_tokens(subject, alone[0].prompt_tokens)
    if [each.top for each in alone[0].tokens] == [each.top for each in alone[1].tokens]:
        raise CheckFailed("a red and a blue picture have the same answer", "the model does not get the pictures")
    repeated = [subject.ask(red), *subject.ask_together([red, blue])]
    if found := first_difference(list(zip((alone[0], *alone), repeated, strict=True))):
        raise CheckFailed(found, "the prefix cache or a batch mixes pictures up")
    if found := difference(alone[0], subject.ask(_request([_square(COLOURS["red"])], as_url=True))):
        raise CheckFailed(f"the same picture as a data URL: {found}", "pictures are decoded in two ways")
    return f"{tokens} tokens for a picture" + ("" if subject.random else f", {_name_colours(subject)}")


PICTURE_CHECK = Check(
    name="pictures",
    compared="the answers about two pictures: different, and equal if repeated, at once, and as a data URL; the names "
    f"of {len(COLOURS)} colours, of which {MISSES} may be wrong; or the refusal of a model that does not see",
    run=_look,
)


def _refused(subject: Subject) -> str:
    try:
        subject.ask(_request([_square(COLOURS["red"])]))
    except CallRefused:
        return "refused, because the model does not see"
    raise CheckFailed("a picture was taken by a model that does not see", "the request's pictures are ignored")


def _count_tokens(subject: Subject, with_one: int) -> int:
    """Returns the tokens of one picture. Raises CheckFailed if pictures are not counted."""
    none = subject.count(_request([]))
    two = subject.count(_request([_square(COLOURS["red"]), _square(COLOURS["blue"])]))
    if not none < with_one < two:
        raise CheckFailed(
            f"a prompt has {none:,} tokens, {with_one:,} with a picture and {two:,} with two",
            "pictures are lost on their way, or the usage does not count them",
        )
    return with_one - none


def _name_colours(subject: Subject) -> str:
    requests = [_request([_square(colour)], named=True) for colour in COLOURS.values()]
    answers = subject.ask_together(requests)
    wrong = [
        f"{name} was called {_said(answer)}"
        for name, answer in zip(COLOURS, answers, strict=True)
        if _said(answer) != name
    ]
    if len(wrong) > MISSES:
        raise CheckFailed(
            f"{len(wrong)} of {len(COLOURS)} colours are wrong: {', '.join(wrong)}",
            "the projector or the vision encoder of another model; or the order of channels, the normalisation, the "
            "scaling, or the positions of a picture's tokens",
        )
    return f"{len(COLOURS) - len(wrong)} of {len(COLOURS)} colours are right"


def _said(answer: SubjectAnswer) -> str:
    try:
        return str(json.loads(answer.text))
    except ValueError:
        return repr(answer.text)


def _request(pictures: Sequence[bytes], *, as_url: bool = False, named: bool = False) -> Request:
    parts = [
        chat_pb2.ImagePart(url=PNG + base64.b64encode(data).decode()) if as_url else chat_pb2.ImagePart(data=data)
        for data in pictures
    ]
    content = [*(chat_pb2.ContentPart(image=part) for part in parts), chat_pb2.ContentPart(text=QUESTION)]
    return Request(
        messages=[chat_pb2.ChatMessage(role=USER, content=content)],
        max_tokens=TOKENS,
        schema={"enum": list(COLOURS)} if named else None,
    )


def _square(colour: tuple[int, int, int]) -> bytes:
    """Draws a square of a colour on white; returns it as PNG."""
    edge, inside = SIDE // 4, SIDE // 2
    empty = b"\0" + b"\xff" * (3 * SIDE)  # a row begins with its filter: none
    crossed = b"\0" + b"\xff" * (3 * edge) + bytes(colour) * inside + b"\xff" * (3 * edge)
    rows = empty * edge + crossed * inside + empty * edge
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)  # 8 bits per channel, RGB
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
