"""Parameters as the caller calls them: core and worker have names of their own, and errors must not show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from services.rpc.errors import AllmError

REST: Mapping[str, str] = {"width": "size", "height": "size", "count": "n", "negative": "negative_prompt"}
TYPED: Mapping[str, str] = {"size": "width", "n": "count", "negative": "negative_prompt"}


@contextmanager
def called(names: Mapping[str, str]) -> Iterator[None]:
    """Errors that leave the block name a parameter as `names` says."""
    try:
        yield
    except AllmError as error:
        if other := names.get(error.param or ""):
            error.message = error.message.replace(f"'{error.param}'", f"'{other}'")
            error.param = other
        raise
