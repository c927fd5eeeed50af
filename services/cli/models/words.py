"""Short words for models: states, sizes, times."""

from __future__ import annotations

import re

from allm.models.v1 import model_pb2
from google.protobuf.descriptor import EnumDescriptor

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\s]+")
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


def enum_word(kind: EnumDescriptor, value: int) -> str:
    """Returns `MODEL_STATE_READY` as `ready`; a value unknown to this version as its number."""
    known = kind.values_by_number.get(value)
    if known is None:
        return str(value)
    prefix = _CAPITAL.sub("_", kind.name).upper() + "_"
    return known.name.removeprefix(prefix).lower()


def state_word(state: int) -> str:
    """Returns a state's word, such as `ready`."""
    return enum_word(model_pb2.ModelState.DESCRIPTOR, state)


def format_word(format: int) -> str:
    """Returns a format's word, such as `gguf`."""
    return enum_word(model_pb2.Format.DESCRIPTOR, format)


def modality_word(modality: int) -> str:
    """Returns a modality's word, such as `text`."""
    return enum_word(model_pb2.Modality.DESCRIPTOR, modality)


def reason_word(reason: str, model_id: str) -> str:
    """Returns a reason without a leading model id, which has just been printed."""
    return reason.removeprefix(f"{model_id}: ")


def one_line(text: str) -> str:
    """Returns text on one line, without terminal control characters."""
    return _CONTROL.sub(" ", text).strip()


def shorten(text: str, width: int) -> str:
    """Cuts a text to `width` characters, with dots in place of the rest."""
    return text if len(text) <= width else text[: max(0, width - 3)].rstrip() + "..."


def seconds_word(seconds: float) -> str:
    """Returns `3725` as `1 h 2 min`, `75` as `1 min 15 s`, `8.2` as `8 s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
