"""Text with calls in it, each behind an opening mark: what the dialects with such marks share."""

from __future__ import annotations

from collections.abc import Callable

from services.text.parsers.reader import Reader, Reading


def marked_calls(
    reader: Reader, openers: tuple[str, ...], call: Callable[[str], Reading[bool]], closer: str = ""
) -> Reading[None]:
    """Reads to the end: text is content, and behind one of `openers` `call` reads.

    `call` gets the opener and says whether it told a call; where it did not, the opener is content and reading goes on
    right behind it. `closer` is read over behind a call.
    """
    while opener := (yield from reader.until(openers, reader.content)):
        reader.hold()
        yield from reader.take(len(opener))
        if (yield from call(opener)):
            if closer:
                yield from reader.skip(closer)
        else:
            reader.back()
            reader.content((yield from reader.take(len(opener))))
