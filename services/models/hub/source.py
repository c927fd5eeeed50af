"""The source of a model's files, as operators write it: `hf://org/name[@revision][#file]` or `file:///path`."""

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
    """A repository on the hub, or one file in it."""

    repository: str  # `org/name`
    revision: str  # branch, tag or commit; empty: the default branch
    file: str  # path in the repository; empty: the whole repository


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A local file or folder: an absolute path that resolves to one below the roots.

    The path itself is not resolved: caches of the hub are links to files that are named by their hashes.
    """

    path: Path


Source = HubSource | LocalSource


def parse_source(text: str, roots: Sequence[Path], param: str = "source") -> Source:
    """Parses a source; `param` is its name in the request.

    Raises:
        InvalidRequest: it has neither shape, or points outside of `roots`; the error carries `param`.
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
    except ValueError as error:  # such as an unbalanced bracket
        raise InvalidRequest(f"the source {text!r} is not a file:///absolute/path: {error}", param=param) from error
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute() or parts.query or parts.fragment:
        raise InvalidRequest(f"the source {text!r} does not have the shape file:///absolute/path", param=param)
    try:
        real = path.resolve()
        inside = any(real.is_relative_to(root.resolve()) for root in roots)
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidRequest(f"the source {text!r} cannot be followed: {error}", param=param) from error
    if not inside:  # checked before existence, so that the error does not reveal files elsewhere
        allowed = ", ".join(map(str, roots))
        raise InvalidRequest(f"{path} is not below one of ALLM_MODEL_ROOTS ({allowed})", param=param)
    return LocalSource(real if ".." in path.parts else path)
