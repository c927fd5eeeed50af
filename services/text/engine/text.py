"""From token bytes to text that may be shown: whole characters only, and never any part of a stop string."""

from __future__ import annotations

import codecs


class TextAssembler:
    """Puts the bytes of a request's tokens together.

    Text is held back while it could still turn out to be the beginning of a stop string; bytes are held back until
    their character is complete.
    """

    __slots__ = ("_decode", "_held", "_stop", "decoded", "shown", "stopped")

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._stop = stop
        self._held = ""
        self.decoded = 0  # characters that were complete so far
        self.shown = 0  # characters that were returned so far
        self.stopped = False  # whether a stop string came up

    def push(self, piece: bytes) -> str:
        """Takes one token's bytes; returns the text that is now certain, up to a stop string if one came up."""
        text = self._decode(piece)
        self.decoded += len(text)
        certain = self._certain(text) if self._stop else text
        self.shown += len(certain)
        return certain

    def flush(self) -> str:
        """The text held back, when no more tokens come. Bytes of an unfinished character are dropped."""
        held, self._held = self._held, ""
        self.shown += len(held)
        return held

    def _certain(self, text: str) -> str:
        """What can be shown now that `text` has come behind what is held back; the rest is held back."""
        text = self._held + text
        ends = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if ends:
            self.stopped = True
            self._held = ""
            return text[: min(ends)]
        certain = len(text) - self._open_length(text)
        self._held = text[certain:]
        return text[:certain]

    def _open_length(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
