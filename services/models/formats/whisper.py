"""Inspects Whisper models in three layouts: OpenAI's checkpoint, a CTranslate2 folder, and transformers' safetensors.

The first and the last have the architecture `whisper`, CTranslate2 folders have `whisper_ctranslate2`, which only the
runtime faster_whisper reads. Runtimes open a checkpoint by its file, the others by their folder.

A checkpoint is a zip archive with a pickle, which is scanned and never loaded. The runtime must load checkpoints with
weights_only. In addition, this module checks that the pickle names only tensors, so that a file that would run code is
never registered.
"""

from __future__ import annotations

import io
import pickletools
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, cast

from services.errors import InvalidRequest, ModelInvalid
from services.models.formats.config import CONFIG, read_config
from services.models.formats.document import read_bytes, read_list, read_object
from services.models.formats.finding import Finding, listed, missing, place, there
from services.models.formats.safetensors import COMPANIONS, TOKENIZER
from services.models.formats.safetensors_shards import WHOLE, check_weights, find_weights
from services.models.hub.source import FileTree, read_fully, reading

ARCHITECTURE, CONVERTED = "whisper", "whisper_ctranslate2"
CHECKPOINT = ".pt"
CTRANSLATE2 = "model.bin"
VOCABULARIES = ("vocabulary.json", "vocabulary.txt")
MAX_VOCABULARY = 16 * 1024 * 1024  # bytes
# transformers' two names for the configuration of the feature extractor
PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def inspect_whisper(tree: FileTree, file: str) -> Finding:
    """Checks a Whisper model; `file` names an OpenAI checkpoint, or is empty.

    Raises:
        ModelInvalid: files are missing, ambiguous or damaged; names them.
        InvalidRequest: `file` is no checkpoint.
    """
    if file and not file.endswith(CHECKPOINT):
        raise InvalidRequest(f"{file} is not an OpenAI checkpoint (.pt): name the folder instead", param="source")
    if file:
        return _openai(tree, file)
    layouts = layouts_in(tree)
    if not layouts:
        raise ModelInvalid(
            f"{place(tree)}: no checkpoint (.pt), no {CTRANSLATE2} of CTranslate2, and no {WHOLE} is there"
        )
    if len(layouts) > 1:
        names = "; ".join(f"{layout}: {listed(paths)}" for layout, paths in layouts.items())
        raise ModelInvalid(f"{place(tree)}: the choice of a layout is ambiguous: {names}")
    if "OpenAI" in layouts:
        return _openai(tree, _only(tree, layouts["OpenAI"]))
    return _ctranslate2(tree) if "CTranslate2" in layouts else _transformers(tree)


def layouts_in(tree: FileTree) -> dict[str, list[str]]:
    """Returns the possible layouts of the top folder, each with the files that indicate it."""
    top = [path for path in tree.files if "/" not in path]
    found = {
        "OpenAI": [path for path in top if path.endswith(CHECKPOINT)],
        "CTranslate2": [path for path in top if path in (CTRANSLATE2, *VOCABULARIES)],
        "transformers": [path for path in top if path.endswith((".safetensors", ".safetensors.index.json"))],
    }
    return {layout: paths for layout, paths in found.items() if paths}


def _only(tree: FileTree, paths: list[str]) -> str:
    if len(paths) > 1:
        which = f"the choice of a checkpoint is ambiguous: {listed(paths)}"
        raise ModelInvalid(f"{place(tree)}: {which}. Name the file in the source")
    return paths[0]


def _openai(tree: FileTree, path: str) -> Finding:
    if not there(tree, path):
        raise missing(tree, [path])
    multilingual = read_checkpoint(tree, path)
    if multilingual is None:
        multilingual = not path.removesuffix(CHECKPOINT).endswith(".en")
    return _finding(tree, [path], path, multilingual)


def _ctranslate2(tree: FileTree) -> Finding:
    vocabulary = next((path for path in VOCABULARIES if there(tree, path)), None)
    absent = [path for path in (CTRANSLATE2, CONFIG) if not there(tree, path)]
    if absent or vocabulary is None:
        raise missing(tree, [*absent, *([] if vocabulary else [" or ".join(VOCABULARIES)])])
    read_object(tree, CONFIG)
    check_model(tree, CTRANSLATE2)
    if vocabulary.endswith(".json"):
        tokens = len(read_list(tree, vocabulary, MAX_VOCABULARY))
    else:
        tokens = read_bytes(tree, vocabulary, MAX_VOCABULARY).count(b"\n")
    paths = {CTRANSLATE2, CONFIG, vocabulary, *(COMPANIONS | {TOKENIZER}) & tree.files.keys()}
    return _finding(tree, paths, "", tokens >= MULTILINGUAL, CONVERTED)


def _transformers(tree: FileTree) -> Finding:
    processors = [path for path in PROCESSORS if there(tree, path)]
    absent = [path for path in (CONFIG, TOKENIZER) if not there(tree, path)]
    if absent or not processors:
        raise missing(tree, [*absent, *([] if processors else [" or ".join(PROCESSORS)])])
    config = read_config(tree)
    if config.model_type != "whisper":
        raise ModelInvalid(f"{CONFIG} says that the model is a {config.model_type}, not a whisper")
    weights = find_weights(tree, variants=True)
    if weights is None:
        raise missing(tree, [WHOLE])
    check_weights(tree, [weights])
    paths = {CONFIG, TOKENIZER, *weights.files, *(COMPANIONS | {"normalizer.json"}) & tree.files.keys()}
    return _finding(tree, paths, "", config.vocabulary >= MULTILINGUAL)


def _finding(
    tree: FileTree, paths: Iterable[str], primary: str, multilingual: bool, architecture: str = ARCHITECTURE
) -> Finding:
    return Finding(
        format="whisper",
        modality="audio",
        architecture=architecture,
        capabilities=frozenset({"transcription", "translation"} if multilingual else {"transcription"}),
        context_tokens=0,
        files=tuple(tree.files[path] for path in sorted(paths)),
        primary=primary,
    )


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
            reading(tree, path) as file,
            zipfile.ZipFile(cast(BinaryIO, _Bounded(file, path, tree.files[path].size))) as archive,
        ):
            data = _pickle(archive, path)
    except (zipfile.BadZipFile, EOFError, RuntimeError, *_DAMAGE) as error:
        size = tree.files[path].size
        raise ModelInvalid(f"{path} is cut off or not a checkpoint; it has {size} bytes: {str(error)[:200]}") from None
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
        return read_fully(self._file, left)

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
        raise ModelInvalid(f"{path}: data.pkl in it has {found[0].file_size} bytes; at most {MAX_PICKLE} are allowed")
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


VERSION = 6  # other versions are accepted unchecked
SPECIFICATION = "WhisperSpec"
MAX_VARIABLES = 100_000
MAX_DIMENSIONS = 8


def check_model(tree: FileTree, path: str) -> None:
    """Checks a model file without reading its weights. Of a remote file only the beginning is read, because the rest
    would take a request per variable, and the hub already reports its size.

    Raises:
        ModelInvalid: it holds another kind of model, is cut off, or is corrupt.
    """
    with reading(tree, path) as file:
        reader = _Reader(file, path, tree.files[path].size)
        if reader.number("<I") != VERSION:
            return
        name = reader.text()
        if name != SPECIFICATION:
            raise ModelInvalid(f"{path} holds {name[:100]!r}, not a Whisper model of CTranslate2")
        if tree.folder:
            reader.variables()


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Reads the shapes of the variables in a model file, by name; empty for an unknown version.

    Raises:
        ModelInvalid: it is cut off or corrupt.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        reader = _Reader(file, str(path), path.stat().st_size)
        if reader.number("<I") != VERSION:
            return {}
        reader.text()
        return reader.variables()


class _Reader:
    """Reads CTranslate2's model file.

    Layout (version 6, little-endian): version, name of the specification, its revision, number of variables; each
    variable with name, shape, type, byte count and content; then aliases of names.
    """

    def __init__(self, file: BinaryIO, path: str, size: int) -> None:
        self._file = file
        self._path = path
        self._size = size

    def number(self, shape: str) -> int:
        return int(struct.unpack(shape, self._bytes(struct.calcsize(shape)))[0])

    def text(self) -> str:
        return self._bytes(self.number("<H")).rstrip(b"\0").decode(errors="replace")

    def variables(self) -> dict[str, tuple[int, ...]]:
        """Reads the file to its end, skipping the weights. Returns the shapes of all variables."""
        self.number("<I")  # revision
        count = self._count()
        shapes = {}
        for _ in range(count):
            name = self.text()
            dimensions = self.number("<B")
            if dimensions > MAX_DIMENSIONS:
                raise ModelInvalid(f"{self._path} is corrupt: a variable claims {dimensions} dimensions")
            shapes[name] = struct.unpack(f"<{dimensions}I", self._bytes(4 * dimensions))
            self._bytes(1)  # its type
            length = self.number("<I")
            end = self._file.tell() + length
            if end > self._size:
                raise self._cut_off(end)
            self._file.seek(end)
        for _ in range(2 * self._count()):
            self.text()
        return shapes

    def _count(self) -> int:
        count = self.number("<I")
        if count > MAX_VARIABLES:
            raise ModelInvalid(f"{self._path} is corrupt: it claims {count} variables")
        return count

    def _bytes(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise self._cut_off(self._file.tell() - len(data) + count)
        return data

    def _cut_off(self, needed: int) -> ModelInvalid:
        return ModelInvalid(f"{self._path} is cut off: it has {self._size} bytes and must have {needed} or more")
