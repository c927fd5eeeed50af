"""Why a file cannot be decoded, inside a decoder process: it knows nothing of the service's errors."""

from __future__ import annotations

FORMATS = "wav, mp3, m4a, mp4, aac, ogg, opus, flac and webm"


class Refusal(Exception):
    """The file is at fault; the message says what is wrong with it and what can be done."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
