"""Parameters that OpenAI knows and that are not honoured here: they pass only with a value that asks for nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from services.errors import Unsupported


def refuse_others(parameters: Iterable[tuple[str, Any, tuple[Any, ...]]]) -> None:
    """Raises Unsupported for the first whose value asks for something.

    `parameters`: a name, what the caller gave, and what may be given beside null.
    """
    for name, value, allowed in parameters:
        if value is not None and value not in allowed:
            raise Unsupported(f"'{name}' is not supported by this server in this form.", param=name)
