"""Inspects GGUF models: finds their files in the source and checks their headers."""

from __future__ import annotations

import re

from services.errors import ModelInvalid, Unsupported
from services.models.descriptor import is_projector
from services.models.formats.config import architecture_of
from services.models.formats.finding import Finding, in_parallel, listed, missing, place
from services.models.formats.gguf_header import GgufError, GgufHeader, read_header_from
from services.models.hub.source import FileTree, reading
from services.models.runtimes import LLAMA_CPP_ENCODERS

Split = tuple[str, ...]  # all paths of one model, in order; a runtime opens the first
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)


def split_of(path: str) -> Split:
    """Returns all files of the model that a file belongs to, even if some of them are missing.

    Raises:
        ModelInvalid: its name has impossible numbers.
    """
    match = _SPLIT.fullmatch(path)
    if not match:
        return (path,)
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count:
        raise ModelInvalid(f"{path} is shard {number} of {count} by its name, which is impossible")
    stem, suffix = match["stem"], match["suffix"]
    return tuple(f"{stem}-{one:05}-of-{count:05}{suffix}" for one in range(1, count + 1))


def splits_in(tree: FileTree) -> list[Split]:
    """Returns every GGUF model of a tree, complete or not, by path. Projectors belong to other models."""
    paths = (path for path in tree.files if path.lower().endswith(".gguf"))
    return list(dict.fromkeys(split_of(path) for path in sorted(paths) if not is_projector(path)))


# Architectures of llama.cpp that embed and do not generate. No runtime is known to run the last one.
ENCODERS = LLAMA_CPP_ENCODERS | {"t5encoder"}
_PARTS = {"mmproj": "a projector", "adapter": "an adapter", "imatrix": "an importance matrix"}  # general.type
_POOLING_NONE, _POOLING_RANK = 0, 4  # llama.cpp's values of pooling_type
_PRECISIONS = ("bf16", "f16", "q8_0", "f32")  # in names of projectors; the second is what most are published in
# Projectors whose pictures depend on the tokens and pictures before them, which the runtime does not tell libmtmd.
_UNSUPPORTED_PROJECTORS = frozenset({"deepseek4v", "hunyuanvl"})


def inspect_gguf(tree: FileTree, file: str) -> Finding:
    """Checks the headers of the GGUF file at `file`, or of the only GGUF model in the tree.

    Raises:
        ModelInvalid: it is missing, ambiguous, cut off or otherwise invalid; names the files.
        Unsupported: it is a reranker that needs more than llama.cpp computes.
    """
    split = _choose(tree, file)
    if absent := [path for path in split if path not in tree.files]:
        raise missing(tree, absent)
    headers = in_parallel(lambda path: _header(tree, path), split)
    _check_split(split, headers)
    first = headers[0]
    part = _PARTS.get(str(first.metadata.get("general.type")))
    if part or first.architecture == "clip":
        raise ModelInvalid(f"{split[0]} is {part or 'a projector'}, not a model")
    where = f"general.architecture in {split[0]}"
    architecture = architecture_of(first.metadata.get("general.architecture"), where)
    capability = _capability(first)
    projector = projector_of(tree, split[0], first) if capability == "chat" else ()
    return Finding(
        format="gguf",
        modality="text",
        architecture=architecture,
        capabilities=frozenset({capability, "vision"} if projector else {capability}),
        context_tokens=first.context_length,
        files=tuple(tree.files[path] for path in sorted((*split, *projector))),
        primary=split[0],
    )


def projector_of(tree: FileTree, model: str, header: GgufHeader) -> tuple[str, ...]:
    """Returns the path of the projector in the folder of a model's file, with which it takes pictures; empty: none.

    Of several in different precisions it is one in 16 bits. One for a model of another width does not count.

    Raises:
        ModelInvalid: a projector is damaged; names the file.
    """
    folder = model.rpartition("/")[0]
    paths = [path for path in sorted(tree.files) if is_projector(path) and path.rpartition("/")[0] == folder]
    fitting = [path for path in paths if _fits(_header(tree, path), header)]
    return tuple(sorted(fitting, key=_precision)[:1])


def _fits(projector: GgufHeader, model: GgufHeader) -> bool:
    """Returns True if llama.cpp can take pictures with this projector before this model."""
    known = projector.metadata
    kind = known.get("clip.projector_type", known.get("clip.vision.projector_type"))
    width = model.metadata.get(f"{model.architecture}.embedding_length")
    return (
        projector.architecture == "clip"
        and bool(known.get("clip.has_vision_encoder"))
        and known.get("clip.vision.projection_dim") == width
        and kind not in _UNSUPPORTED_PROJECTORS
    )


def _precision(path: str) -> int:
    """Returns the place of a projector's precision in the order of preference."""
    name = path.rpartition("/")[2].lower()
    found = next((each for each in _PRECISIONS if each in name), "")
    return ("f16", "bf16", "", "q8_0", "f32").index(found)


def _choose(tree: FileTree, file: str) -> Split:
    if file:
        if file not in tree.files:
            raise ModelInvalid(f"{place(tree)}: {file} is missing")
        return split_of(file)
    found = splits_in(tree)
    if not found:
        raise ModelInvalid(f"{place(tree)}: there is no GGUF file")
    if len(found) > 1:
        names = listed(split[0] for split in found)
        which = f"the choice among {len(found)} models is ambiguous: {names}"
        raise ModelInvalid(f"{place(tree)}: {which}. Name the file in the source")
    return found[0]


def _header(tree: FileTree, path: str) -> GgufHeader:
    """Reads the header of one file and checks the file's size against it."""
    size = tree.files[path].size
    try:
        with reading(tree, path) as file:
            header = read_header_from(file, path, size)
    except GgufError as error:
        raise ModelInvalid(str(error)) from error
    if size < header.needed:
        raise ModelInvalid(f"{path} is cut off: it has {size} bytes; by its header it must have {header.needed}")
    return header


def _check_split(split: Split, headers: list[GgufHeader]) -> None:
    """Checks that the headers and the file names agree on the split."""
    count = len(split)
    for number, (path, header) in enumerate(zip(split, headers, strict=True)):
        default = (0, 1) if count == 1 else (None, None)
        declared = (header.metadata.get("split.no", default[0]), header.metadata.get("split.count", default[1]))
        if count == 1 and declared[1] == 0:  # some writers put this into files that are not split
            continue
        if declared != (number, count):
            raise ModelInvalid(
                f"{path} is shard {number + 1} of {count} by its name, but its header says split.no {declared[0]} "
                f"(counted from 0) and split.count {declared[1]}"
            )
    total = headers[0].metadata.get("split.tensors.count")
    held = sum(header.tensors for header in headers)
    if count > 1 and isinstance(total, int) and total != held:
        raise ModelInvalid(f"{split[0]} says that there are {total} tensors; all shards together have {held}")


def _capability(header: GgufHeader) -> str:
    """Returns what the model is for. Only encoders, and decoders trained to embed or rerank, have a pooling type."""
    pooling = header.metadata.get(f"{header.architecture}.pooling_type", _POOLING_NONE)
    if pooling == _POOLING_RANK:
        types = header.metadata.get("tokenizer.ggml.token_type_count", 1)
        if isinstance(types, int) and types > 1:
            message = (
                "the reranker marks its query and its document with token types, which llama.cpp ignores, so its "
                "scores would be wrong: register the model as safetensors"
            )
            raise Unsupported(message, param="source")
        return "rerank"
    embeds = header.architecture in ENCODERS or (isinstance(pooling, int) and pooling > _POOLING_NONE)
    return "embeddings" if embeds else "chat"
