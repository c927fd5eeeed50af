"""Reads untrusted JSON documents with limits on size and depth; errors name the file."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, NoReturn

from services.errors import ModelInvalid
from services.models.hub.source import FileTree, read_fully, reading

CONFIG_BYTES = 4 * 1024 * 1024
# Parsed JSON takes many times the memory of its text, and the interpreter's lock serialises parsing anyway.
_PARSING = threading.Lock()


def read_bytes(tree: FileTree, path: str, limit: int) -> bytes:
    """Reads a whole file.

    Raises:
        ModelInvalid: it is missing, larger than `limit` bytes, or cannot be read.
    """
    entry = tree.files.get(path)
    if entry is None:
        raise ModelInvalid(f"{path} is missing")
    if entry.size > limit:
        raise ModelInvalid(f"{path} has {entry.size} bytes; at most {limit} are allowed")
    with reading(tree, path) as file:
        data = read_fully(file, entry.size)
    if len(data) < entry.size:
        raise ModelInvalid(f"{path} is cut off: it has {len(data)} bytes; {entry.size} were expected")
    return data


def read_object(tree: FileTree, path: str, limit: int = CONFIG_BYTES, *, strict: bool = False) -> dict[str, Any]:
    """Reads a JSON object from a file; `strict` as in `parse_object`.

    Raises:
        ModelInvalid: the file is missing, larger than `limit` bytes, or no JSON object; names it.
    """
    return parse_object(read_bytes(tree, path, limit), path, strict=strict)


def read_list(tree: FileTree, path: str, limit: int = CONFIG_BYTES) -> list[Any]:
    """Reads a JSON list from a file. Raises ModelInvalid as `read_object` does."""
    found = _parse(read_bytes(tree, path, limit), path, strict=False)
    if not isinstance(found, list):
        raise ModelInvalid(f"{path} is not a JSON list")
    return found


def known_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file of a model that was inspected before; empty if it holds another value.

    Raises:
        OSError, ModelInvalid: the file is gone or no JSON.
    """
    with path.open("rb") as file:
        found = _parse(file.read(CONFIG_BYTES), str(path), strict=False)
    return found if isinstance(found, dict) else {}


def parse_object(data: bytes, name: str, *, strict: bool) -> dict[str, Any]:
    """Parses a JSON object; `name` is for messages.

    `strict` refuses JSON that parsers read differently: duplicate keys, NaN, Infinity. It is off by default because
    published config.json files contain Infinity.

    Raises:
        ModelInvalid: the data is no JSON object.
    """
    found = _parse(data, name, strict=strict)
    if not isinstance(found, dict):
        raise ModelInvalid(f"{name} is not a JSON object")
    return found


def _parse(data: bytes, name: str, *, strict: bool) -> Any:
    try:
        with _PARSING:
            text = data.decode()
            return json.loads(text, object_pairs_hook=_once, parse_constant=_refuse) if strict else json.loads(text)
    except RecursionError:
        raise ModelInvalid(f"{name} is nested too deeply") from None
    except ValueError as error:  # includes UnicodeDecodeError
        raise ModelInvalid(f"{name} is not valid JSON: {str(error)[:200]}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"the key {key[:100]!r} appears twice")
        seen.add(key)
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not allowed")
