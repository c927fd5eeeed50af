"""Where a model's files come from, as an operator writes it: `hf://org/name[@revision][#file]` or `file:///path`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from services.errors import InvalidRequest

HUB_SHAPE = "hf://org/name[@revision][#file]"
_HUB = re.compile(r"hf://(?P<repository>[^/@#\s]+/[^/@#\s]+)(?:@(?P<revision>[^@#\s]+))?(?:#(?P<file>[^#]+))?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
MAX_SOURCE = 2000  # characters


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository on the hub, and in it possibly one file."""

    repository: str  # `org/name`
    revision: str  # branch, tag or commit; empty: the default branch
    file: str  # path in it; empty: the whole repository


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A file or folder of this machine; an absolute path that is below one of the roots once all links are followed.

    It keeps its own name: caches of the hub are links to files that are named by their hashes.
    """

    path: Path


Source = HubSource | LocalSource


def parse_source(text: str, roots: Sequence[Path], param: str = "source") -> Source:
    """Reads a source; `param` is what the request calls it.

    Raises:
        InvalidRequest: it has neither shape, or points outside of `roots`; `param` is that.
    """
    if not text:
        raise InvalidRequest(f"Missing required parameter: '{param}'.", param=param)
    if len(text) > MAX_SOURCE:
        raise InvalidRequest(f"a source may have {MAX_SOURCE} characters", param=param)
    if text.startswith("hf://"):
        return _hub(text, param)
    if text.startswith("file://"):
        return _local(text, roots, param)
    raise InvalidRequest(f"the source {text!r} is neither {HUB_SHAPE} nor file:///path", param=param)


def _hub(text: str, param: str) -> HubSource:
    match = _HUB.fullmatch(text)
    if not match or not all(_NAME.fullmatch(part) for part in match["repository"].split("/")):
        raise InvalidRequest(f"the source {text!r} does not have the shape {HUB_SHAPE}", param=param)
    return HubSource(match["repository"], match["revision"] or "", unquote(match["file"] or ""))


def _local(text: str, roots: Sequence[Path], param: str) -> LocalSource:
    try:
        parts = urlsplit(text)
    except ValueError as error:  # a bracket that begins no address
        raise InvalidRequest(f"the source {text!r} is no file:///absolute/path: {error}", param=param) from error
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute() or parts.query or parts.fragment:
        raise InvalidRequest(f"the source {text!r} does not have the shape file:///absolute/path", param=param)
    try:
        real = path.resolve()
        inside = any(real.is_relative_to(root.resolve()) for root in roots)
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidRequest(f"the source {text!r} cannot be followed: {error}", param=param) from error
    if not inside:  # before looking whether it exists: what lies elsewhere is nobody's business
        allowed = ", ".join(map(str, roots))
        raise InvalidRequest(f"{path} is not below one of ALLM_MODEL_ROOTS ({allowed})", param=param)
    return LocalSource(real if ".." in path.parts else path)
