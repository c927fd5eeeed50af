"""Parameters as the caller calls them: the core has names of its own, and its errors must not show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from services.errors import AllmError


@contextmanager
def called(names: Mapping[str, str]) -> Iterator[None]:
    """Errors that leave the block name a parameter, or a part of one, as `names` says."""
    try:
        yield
    except AllmError as error:
        param = error.param or ""
        for name, other in names.items():
            if param == name or param.startswith((f"{name}.", f"{name}[")):
                error.param = other + param[len(name) :]
                error.message = error.message.replace(f"'{name}", f"'{other}")
                break
        raise
