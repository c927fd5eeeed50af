"""The loop that dialects with an opening mark before each call share."""

from __future__ import annotations

from collections.abc import Callable

from services.text.parsers.reader import Reader, Reading
from services.text.parsers.tool_shape import Tools


def marked_calls(
    reader: Reader, tools: Tools, openers: tuple[str, ...], call: Callable[[str], Reading[bool]], closer: str = ""
) -> Reading[None]:
    """Reads to the end of the answer: text is content, and `call` reads after each of `openers`.

    Without tools everything is content. `call` gets the opener and returns True if it read a call; otherwise the opener
    is content and reading continues after it. `closer` is skipped after a call. Markup truncated by the end is dropped.
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
