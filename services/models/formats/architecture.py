"""The name of an architecture, as a model's own metadata gives it."""

from __future__ import annotations

import re
import reprlib

from services.errors import ModelInvalid

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")  # goes into statuses and messages


def architecture_of(value: object, where: str) -> str:
    """The name, checked.

    Raises:
        ModelInvalid: it is missing, or not what a name can be; says `where`.
    """
    if value is None or value == "":
        raise ModelInvalid(f"{where} is missing: it names the model's architecture")
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ModelInvalid(f"{where} is {reprlib.repr(value)}, which is no name of an architecture")
    return value
