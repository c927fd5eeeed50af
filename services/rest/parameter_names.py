"""Parameter names of the REST API: the core has its own names, which its errors must not show to callers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from services.errors import AllmError


@contextmanager
def called(names: Mapping[str, str]) -> Iterator[None]:
    """Renames the parameter, or its parent, of errors that leave the block, as given by `names`."""
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
