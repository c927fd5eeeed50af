"""Runs these tests on uvloop, like the service that owns the decoders, and shares a decoder pool between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio
import uvloop

from services.audio.sound.decoders import SoundDecoders
from tests.audio.sound.pool import Pool


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Returns the event loop factories that pytest-asyncio uses for this folder."""
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    """Runs a pool of two decoders, a queue of two and at most an hour of audio, on the module's event loop."""
    folder = tmp_path_factory.mktemp("sound") / "uploads"
    decoders = SoundDecoders(decoders=2, folder=folder, max_seconds=3600, queue=2, stall_seconds=60)
    await decoders.start()
    yield Pool(decoders, folder)
    await decoders.close()
