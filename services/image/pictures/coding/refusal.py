"""Why a picture cannot be read, inside a codec process: it knows nothing of the service's errors."""

from __future__ import annotations


class Refusal(Exception):
    """The file is at fault; the message says what is wrong with it. `param` is image or mask."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
