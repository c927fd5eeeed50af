"""Runs these tests on uvloop, like the service that owns the workers and codecs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Returns the event loop factories that pytest-asyncio uses for this folder."""
    return {"uvloop": uvloop.new_event_loop}
