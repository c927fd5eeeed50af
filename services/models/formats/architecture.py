"""Checks the name of an architecture in a model's own metadata."""

from __future__ import annotations

import re
import reprlib

from services.errors import ModelInvalid

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")  # goes into statuses and messages


def architecture_of(value: object, where: str) -> str:
    """Returns the name if it is valid.

    Raises:
        ModelInvalid: it is missing or no valid name; the message contains `where`.
    """
    if value is None or value == "":
        raise ModelInvalid(f"{where} is missing: it names the model's architecture")
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ModelInvalid(f"{where} is {reprlib.repr(value)}, which is no name of an architecture")
    return value
