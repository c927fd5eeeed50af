"""Reads the variables of CTranslate2's model.bin for comparison."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

Variable = tuple[tuple[int, ...], int, bytes]  # shape, dtype, data


def variables(path: Path) -> dict[str, Variable]:
    """Returns every variable by name."""
    with path.open("rb") as file:
        _number(file, "I")  # format version
        _text(file)
        _number(file, "I")
        return {_text(file): _variable(file) for _ in range(_number(file, "I"))}


def _variable(file: BinaryIO) -> Variable:
    shape = tuple(_number(file, "I") for _ in range(_number(file, "B")))
    return shape, _number(file, "B"), file.read(_number(file, "I"))


def _text(file: BinaryIO) -> str:
    return file.read(_number(file, "H"))[:-1].decode()


def _number(file: BinaryIO, kind: str) -> int:
    (value,) = struct.unpack(f"<{kind}", file.read(struct.calcsize(f"<{kind}")))
    return int(value)
