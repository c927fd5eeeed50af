"""Runs all turns of a request's preparation."""

from __future__ import annotations

from typing import Any

from services.text.engine.preparation import Preparing


def prepared(preparing: Preparing) -> Any:
    """Returns what the loop takes; None if the request was refused."""
    while True:
        try:
            next(preparing)
        except StopIteration as end:
            return end.value
