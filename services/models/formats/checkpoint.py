"""Checks OpenAI's Whisper checkpoints: a zip archive with a pickle, which is scanned and never loaded.

The runtime must load checkpoints with weights_only. In addition, this module checks that the pickle names only tensors,
so that a file that would run code is never registered.
"""

from __future__ import annotations

import io
import pickletools
import struct
import zipfile
from typing import Any, BinaryIO, cast

from services.errors import ModelInvalid
from services.models.hub.source_tree import FileTree

MAX_PICKLE = 4 * 1024 * 1024  # bytes; 20 times the largest published one
MAX_READ = 16 * 1024 * 1024  # most bytes of the archive's central directory
_STORAGES = ("Half", "BFloat16", "Float", "Double", "Byte", "Char", "Short", "Int", "Long", "Bool")
ALLOWED = frozenset(
    {"collections OrderedDict", "torch._utils _rebuild_tensor_v2", *(f"torch {kind}Storage" for kind in _STORAGES)}
)
_BY_NAME = {"GLOBAL", "INST"}  # opcodes whose argument is the global's name
_BY_STACK = {"STACK_GLOBAL", "EXT1", "EXT2", "EXT4", "OBJ"}  # opcodes whose global is unknown without running them
_MEMO = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_DAMAGE = (ValueError, LookupError, ArithmeticError, struct.error)  # errors of parsers on damaged bytes
MULTILINGUAL = 51865  # least vocabulary size of a multilingual model; English-only models have one token less


def read_checkpoint(tree: FileTree, path: str) -> bool | None:
    """Checks a checkpoint. Returns True if it is multilingual, None if it does not say.

    Raises:
        ModelInvalid: it is damaged, no Whisper checkpoint, or its pickle names other globals than tensors; says what.
    """
    try:
        with (
            tree.open(path) as file,
            zipfile.ZipFile(cast(BinaryIO, _Bounded(file, path, tree.files[path].size))) as archive,
        ):
            data = _pickle(archive, path)
    except (zipfile.BadZipFile, EOFError, RuntimeError, *_DAMAGE) as error:
        size = tree.files[path].size
        raise ModelInvalid(f"{path} is cut off or not a checkpoint; it has {size} bytes: {str(error)[:200]}") from None
    except OSError as error:
        raise ModelInvalid(f"{path}: {error.strerror or error}") from error
    return _scan_pickle(data, path)


class _Bounded(io.RawIOBase):
    """A file with a limit on single reads, so that a corrupt archive cannot fill the memory."""

    def __init__(self, file: BinaryIO, path: str, size: int) -> None:
        self._file = file
        self._path = path
        self._size = size

    def read(self, size: int = -1, /) -> bytes:
        there = max(0, self._size - self._file.tell())
        left = there if size < 0 else min(size, there)
        if left > MAX_READ:
            raise ModelInvalid(f"{self._path} is corrupt: its table of contents takes more than {MAX_READ} bytes")
        parts: list[bytes] = []
        while left > 0 and (part := self._file.read(left)):  # remote reads may return less
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def _pickle(archive: zipfile.ZipFile, path: str) -> bytes:
    """Returns the archive's only pickle; refuses several, because readers differ in which one they use."""
    entries = archive.infolist()
    found = [entry for entry in entries if entry.filename.casefold().rpartition("/")[2] == "data.pkl"]
    if len(found) != 1 or found[0].filename.count("/") != 1 or not found[0].filename.endswith("/data.pkl"):
        raise ModelInvalid(f"{path} is not a checkpoint: it must hold one folder with data.pkl, and holds {len(found)}")
    if any(entry.filename.casefold().endswith("/constants.pkl") for entry in entries):
        raise ModelInvalid(f"{path} is a TorchScript archive, not a checkpoint")
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ModelInvalid(f"{path} is not a checkpoint: {entry.filename[:100]} in it is compressed")
        if entry.header_offset + entry.file_size > archive.start_dir:
            raise ModelInvalid(f"{path} is corrupt: {entry.filename[:100]} in it continues past its end")
    if found[0].file_size > MAX_PICKLE:
        raise ModelInvalid(f"{path}: data.pkl in it has {found[0].file_size} bytes; {MAX_PICKLE} are allowed")
    return archive.read(found[0])


def _scan_pickle(data: bytes, path: str) -> bool | None:
    """Scans the pickle's operations without executing them."""
    words: set[str] = set()
    vocabulary, last = None, None
    try:
        for operation, argument, _ in pickletools.genops(data):
            if operation.name in _MEMO:
                continue
            _check_operation(operation.name, argument, path)
            if last == "n_vocab" and type(argument) is int:
                vocabulary = argument
            last = argument
            if isinstance(argument, str):
                words.add(argument)
    except (EOFError, *_DAMAGE) as error:
        raise ModelInvalid(f"{path} is corrupt: data.pkl in it is not a pickle: {str(error)[:200]}") from None
    if not {"dims", "model_state_dict"} <= words:
        raise ModelInvalid(f"{path} is not a Whisper checkpoint: it has no dims and model_state_dict")
    return None if vocabulary is None else vocabulary >= MULTILINGUAL


def _check_operation(name: str, argument: Any, path: str) -> None:
    if name in _BY_STACK:
        raise ModelInvalid(f"{path} is refused: its pickle names globals by {name}, which a checkpoint does not need")
    if name in _BY_NAME and argument not in ALLOWED:
        what = str(argument)[:200].replace(" ", ".")
        raise ModelInvalid(f"{path} is refused: its pickle names {what}, and only tensors may be in a checkpoint")
