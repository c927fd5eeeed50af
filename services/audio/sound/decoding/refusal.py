"""The error for a file that a decoder process cannot decode; the process does not know the service's errors."""

from __future__ import annotations

FORMATS = "wav, mp3, m4a, mp4, aac, ogg, opus, flac and webm"


class Refusal(Exception):
    """A fault of the file; the message names the fault and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
