"""Text with calls in it, each behind an opening mark: what the dialects with such marks share."""

from __future__ import annotations

from collections.abc import Callable

from services.text.parsers.reader import Reader, Reading
from services.text.parsers.tool_shape import Tools


def marked_calls(
    reader: Reader, tools: Tools, openers: tuple[str, ...], call: Callable[[str], Reading[bool]], closer: str = ""
) -> Reading[None]:
    """Reads to the end: text is content, and behind one of `openers` `call` reads. Without tools all is content.

    `call` gets the opener and says whether it told a call; where it did not, the opener is content and reading goes on
    right behind it. `closer` is read over behind a call. Where the answer was cut off in a call's markup, that goes.
    """
    while opener := (yield from reader.until(openers if tools else (), reader.content)):
        reader.hold()
        yield from reader.take(len(opener))
        told = yield from call(opener)
        if told and closer:
            yield from reader.skip(closer)
        if reader.broken_off:
            reader.drop()
        elif not told:
            reader.back()
            reader.content((yield from reader.take(len(opener))))
