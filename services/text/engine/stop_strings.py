"""Conversion of token bytes to text that may be shown: whole characters, without any part of a stop string."""

from __future__ import annotations

import codecs


class TextAssembler:
    """Incremental decoder of a request's tokens.

    It holds back text that may be the start of a stop string, and bytes until their character is complete.
    """

    __slots__ = ("_decode", "_held", "_stop", "decoded", "shown", "stopped")

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._stop = stop
        self._held = ""
        self.decoded = 0  # complete characters so far
        self.shown = 0  # returned characters so far
        self.stopped = ""  # the stop string that was found

    def push(self, piece: bytes, *, stops: bool = True) -> str:
        """Adds one token's bytes. Returns the text that is now certain, up to a stop string if one was found.

        `stops`: whether the token's text can be part of a stop string.
        """
        text = self._decode(piece)
        self.decoded += len(text)
        certain = self._certain(text) if self._stop and stops else text
        self.shown += len(certain)
        return certain

    def flush(self) -> str:
        """Returns the text held back, at the end of the answer. Drops the bytes of an incomplete character."""
        held, self._held = self._held, ""
        self.shown += len(held)
        return held

    def _certain(self, text: str) -> str:
        """Appends `text` to the held text. Returns the part that can be shown and holds back the rest."""
        text = self._held + text
        found = [(at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            end, self.stopped = min(found)
            self._held = ""
            return text[:end]
        certain = len(text) - self._open_length(text)
        self._held = text[certain:]
        return text[:certain]

    def _open_length(self, text: str) -> int:
        """Returns the length of the longest suffix of `text` that is the start of a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
