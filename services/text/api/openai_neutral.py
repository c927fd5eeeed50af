"""Parameters of OpenAI's API that this server does not support: only values without effect are accepted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from services.errors import Unsupported


def refuse_others(parameters: Iterable[tuple[str, Any, tuple[Any, ...]]]) -> None:
    """Raises Unsupported for the first parameter whose value would have an effect.

    `parameters`: tuples of name, the caller's value, and the values accepted in addition to null.
    """
    for name, value, allowed in parameters:
        if value is not None and value not in allowed:
            raise Unsupported(f"'{name}' is not supported by this server in this form.", param=name)
