"""Decoders are owned by a service that runs on uvloop: so do these tests. And the pool that most of them share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio
import uvloop

from services.audio.sound.decoders import SoundDecoders
from tests.audio.sound.pool import Pool


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What pytest-asyncio makes the loops of this folder with."""
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    """Two decoders, two places to wait, an hour of sound at most; tests that use it run on their module's loop."""
    folder = tmp_path_factory.mktemp("sound") / "uploads"
    decoders = SoundDecoders(decoders=2, folder=folder, max_seconds=3600, queue=2, stall_seconds=60)
    await decoders.start()
    yield Pool(decoders, folder)
    await decoders.close()
