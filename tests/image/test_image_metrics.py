"""The image metrics, with a scripted worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import REGISTRY

from services.image.engine.messages import Accepted, Counters, Finished, Picture, Stepped
from services.image.manager import LoadedPipeline
from services.settings.settings import load_settings
from services.worker.messages import Phase
from tests.image.engine.scripted_images import READY, asked
from tests.puppet_worker import PuppetWorker

MODEL = "measured-pictures"
PATIENCE_SECONDS = 60.0


@asynccontextmanager
async def loaded(worker: Any) -> AsyncIterator[LoadedPipeline]:
    model = LoadedPipeline(MODEL, worker, READY, load_settings({}).image)
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            yield model
        finally:
            await model.close()


def value(name: str) -> float:
    return REGISTRY.get_sample_value(f"allm_{name}", {"model": MODEL}) or 0.0


async def test_steps_pictures_and_waiting_are_counted_and_signs_of_life_are_none() -> None:
    worker = PuppetWorker()
    async with loaded(worker) as model:
        with model.generate(asked(count=2)) as request:
            assert (value("requests_running"), value("requests_waiting")) == (0, 1)
            worker.say(Accepted(1, 3))
            worker.say(Stepped(Counters(1, 1, 0, 2), [Phase(1, "steps", request.started + 9.0)]))
            worker.say(Stepped(Counters(1, 1, 0, 2)))  # a heartbeat during a long operation
            worker.say(Stepped(Counters(2, 1, 0, 2)))
            worker.say(
                Picture(1, 0, 0, 64, 64, b""), Picture(1, 0, None, 64, 64, b""), Picture(1, 1, None, 64, 64, b"")
            )
            worker.say(Finished(1, 1.0, 4))
            while not isinstance(await request.next(), Finished):
                pass
            assert (value("requests_running"), value("requests_waiting")) == (1, 0)
        worker.say(Stepped(Counters(2, 0, 0, 0)))
        while value("requests_running"):  # noqa: ASYNC110 (what it looks at tells nobody)
            await asyncio.sleep(0.01)
    assert value("engine_steps_total") == 2
    assert value("image_steps_total") == 4
    assert (value("batch_images_count"), value("batch_images_sum")) == (2, 4)
    assert value("images_total") == 2
    assert value("time_to_first_image_seconds_count") == 1
    assert value("request_queue_seconds_count") == 1
    assert 0 < value("request_queue_seconds_sum") <= 9
