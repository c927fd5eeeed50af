"""The error of a codec process, which does not import the service's errors."""

from __future__ import annotations


class Refusal(Exception):
    """The file cannot be read; `message` says why. `param` is image or mask."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
