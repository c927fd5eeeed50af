"""Ids and aliases: the names that requests use for a model."""

from __future__ import annotations

import re
from collections.abc import Sequence

from services.errors import InvalidRequest

MAX_NAME = 128  # characters
MAX_ALIASES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
_VERBS = (":update", ":load", ":unload")  # of the REST paths /v1/models/{id}:verb


def check_id(name: str) -> None:
    """Checks that a name can be an id. Raises InvalidRequest with param `id`."""
    _check(name, "id")


def check_aliases(aliases: Sequence[str], model_id: str) -> None:
    """Checks that the names can be a model's aliases. Raises InvalidRequest with param `aliases`."""
    if len(aliases) > MAX_ALIASES:
        raise InvalidRequest(f"a model may have {MAX_ALIASES} aliases; {len(aliases)} were given", param="aliases")
    seen = {model_id}
    for alias in aliases:
        _check(alias, "aliases")
        if alias in seen:
            what = "is the model's id" if alias == model_id else "appears twice"
            raise InvalidRequest(f"the alias {alias!r} {what}", param="aliases")
        seen.add(alias)


def _check(name: str, param: str) -> None:
    if not name:
        what = "Missing required parameter: 'id'." if param == "id" else "an alias is empty"
        raise InvalidRequest(what, param=param)
    if len(name) > MAX_NAME:
        raise InvalidRequest(f"{name[:MAX_NAME]!r}... is longer than {MAX_NAME} characters", param=param)
    if not _NAME.fullmatch(name):
        allowed = "letters, digits and `._-:/@+`, the first of them a letter or a digit"
        raise InvalidRequest(f"the name {name!r} is not allowed: it must consist of {allowed}", param=param)
    # Proxies resolve such paths, so a request for this model would arrive as one for another.
    if any(segment in ("", ".", "..") for segment in name.split("/")):
        raise InvalidRequest(f"the name {name!r} is not allowed: no part of it may be empty, `.` or `..`", param=param)
    if name.endswith(_VERBS):
        raise InvalidRequest(f"the name {name!r} is not allowed: it ends with {' or '.join(_VERBS)}", param=param)
