"""Workers are owned by services, and services run on uvloop: so do these tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What pytest-asyncio makes the loops of this folder with."""
    return {"uvloop": uvloop.new_event_loop}
