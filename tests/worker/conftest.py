"""Runs this folder's tests on uvloop, because the services that own workers run on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Returns pytest-asyncio's loop factories for this folder."""
    return {"uvloop": uvloop.new_event_loop}
