"""References to models as people write them, such as `hf.co/org/name:tag`, and the choice of the model's file.

A tag is a quantization such as `Q4_K_M`, or a file's path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import quote, unquote

from services.errors import InvalidRequest, ModelInvalid
from services.models.descriptor import Format
from services.models.formats.inspect import guess
from services.models.hub.names import HUB, after_hub
from services.models.hub.source import FileTree

SHAPE = "hf.co/ORG/NAME:QUANTIZATION"
_REFERENCE = re.compile(
    r"hf\.co/(?P<repository>[^/@:\s]+/[^/@:\s]+)(?:@(?P<revision>[^@:\s]+))?(?::(?P<tag>[^:\s]+))?", re.ASCII
)
_QUANTIZATION = re.compile(
    r"(?:^|[-._/])((?:I?Q|TQ)[1-8](?:_[A-Z0-9]+)*|BF16|F16|F32|MXFP4)(?=[-._/]|$)", re.IGNORECASE | re.ASCII
)
_PAGE = re.compile(r"(?P<repository>[^/\s]+/[^/\s]+)/(?:tree|blob|resolve)/(?P<revision>[^/\s]+)(?:/(?P<file>\S+))?")
_NO_ID = re.compile(r"[^a-z0-9._-]+|^[^a-z0-9]+", re.ASCII)
# Without a tag: the first of these that a repository has, as the hub's own pages propose.
_USUAL = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0")
MOST_NAMED = 20  # quantizations that a message lists
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository, or a local folder, and which of its models is meant."""

    source: str  # `hf://org/name[@revision]`, or `file:///folder`
    tag: str  # empty: the usual one


def parse_reference(name: str) -> HubReference:
    """Parses a reference. Raises InvalidRequest if it has another shape; `param` is `model`."""
    match = _REFERENCE.fullmatch(name)
    if not match:
        why = f"'model': {name[:100]!r} is no model of the hub, and only such can be pulled: {SHAPE}."
        raise InvalidRequest(why, param="model")
    revision = f"@{match['revision']}" if match["revision"] else ""
    return HubReference(f"hf://{match['repository']}{revision}", match["tag"] or "")


def find_reference(text: str) -> HubReference:
    """Parses a source: `org/name[@revision][:tag]`, the address of a page of the hub, `hf://...`, or `file:///path`.

    Raises InvalidRequest if it has none of these shapes; `param` is `source`.
    """
    if text.startswith("file://"):
        return HubReference(text, "")
    after = after_hub(text)
    rest = text if after is None else after
    page = _PAGE.fullmatch(rest.partition("?")[0].rstrip("/"))
    try:
        if page:
            found = parse_reference(f"{HUB}{page['repository']}@{page['revision']}")
            return HubReference(found.source, unquote(page["file"] or ""))
        found = parse_reference(HUB + rest.rstrip("/").replace("#", ":", 1))
        return HubReference(found.source, unquote(found.tag) if "#" in rest else found.tag)
    except InvalidRequest:
        why = f"the source {text[:100]!r} is neither ORG/NAME[@REVISION][:QUANTIZATION] nor a page of the hub"
        raise InvalidRequest(why, param="source") from None


def with_file(source: str, file: str) -> str:
    """Returns the source of one file of a repository or folder; empty `file`: all of it."""
    if not file:
        return source
    if source.startswith("file://"):
        return source if source.endswith(f"/{quote(file)}") else f"{source.rstrip('/')}/{quote(file)}"
    return f"{source}#{quote(file)}"


def id_of(source: str) -> str:
    """Proposes an id: the repository's name, or a file's or folder's, in small letters and without the format."""
    path = source.partition("#")[0].removeprefix("hf://").partition("@")[0]
    name = PurePosixPath(unquote(path)).name.lower()
    return _NO_ID.sub("-", re.sub(r"[-.]gguf$|\.safetensors$|\.pt$", "", name)).strip("-") or "model"


def quantization_of(path: str) -> str:
    """Returns the quantization in the name of a GGUF file, in capitals; empty: its name has none."""
    found = _QUANTIZATION.findall(path.removesuffix(".gguf"))
    return found[-1].upper() if found else ""


def usual_file(files: Iterable[str]) -> str:
    """Returns the file of the usual quantization, or else the first file; empty if there is none."""
    paths = list(files)
    quantized = {quantization_of(path): path for path in reversed(paths)}
    return next((quantized[one] for one in _USUAL if one in quantized), paths[0] if paths else "")


def choose_file(tree: FileTree, reference: HubReference) -> tuple[Format, str]:
    """Returns the format of the model that is meant, and its file; empty: the whole repository.

    Raises:
        ModelInvalid: nothing fits, or there are several models; the message lists them.
    """
    models = guess(tree)
    files: dict[str, Format] = {file: format for format, file in models if file}
    if reference.tag in files:
        return files[reference.tag], reference.tag
    quantized = {quantization_of(file): file for file, format in reversed(files.items()) if format == "gguf"}
    for wanted in (reference.tag.upper(),) if reference.tag else _USUAL:
        if file := quantized.get(wanted):
            return "gguf", file
    if reference.tag in tree.files:
        raise ModelInvalid(f"{reference.source} has {_no_format([reference.tag])}")
    if reference.tag:
        there = ", ".join(sorted(filter(None, quantized))[:MOST_NAMED]) or "no GGUF files with a quantization"
        raise ModelInvalid(f"{reference.source} has no {reference.tag[:100]!r}; it has {there}")
    if len(models) != 1 and not quantized:
        what = f"several models: {', '.join(sorted(files))[:500]}" if models else _no_format(tree.files)
        raise ModelInvalid(f"{reference.source} has {what}")
    return models[0]


def _no_format(files: Iterable[str]) -> str:
    """Says that these files are no model, and what to do."""
    why = "no model of a known format: GGUF, safetensors, Whisper, diffusers"
    if weights := next((name for name in sorted(files) if name.endswith(".safetensors")), ""):
        return f"{why}; {weights} needs the config.json of its folder, or the format diffusers if it is a checkpoint"
    if pickled := next((name for name in sorted(files) if name.endswith(_PICKLES)), ""):
        return f"{why}; {pickled} is a pickle, which may run code when it is read: convert it to safetensors"
    return why
