"""The worker process: loading, errors, concurrent requests, and a clean end on any input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.image.engine.messages import (
    Accepted,
    EngineOptions,
    Finished,
    FromWorker,
    Load,
    Picture,
    PipelineReady,
    Progress,
    Stepped,
)
from services.worker.messages import Cancel, LoadFailed, RequestRefused
from services.worker.process import WorkerDied, WorkerProcess, worker_environ
from tests.image.engine.scripted_images import asked
from tests.image.engine.tiny_pipelines import saved

LIMIT = 120  # seconds, for any wait
SMALL = {"width": 32, "height": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("StableDiffusionPipeline", tmp_path_factory.mktemp("pipeline") / "tiny")


@asynccontextmanager
async def worker(path: Path, runtime: str = "diffusers") -> AsyncIterator[WorkerProcess]:
    process = await WorkerProcess.start("services.image.engine", FromWorker, "tiny", {**worker_environ(1)})
    try:
        process.send(Load(runtime, EngineOptions(model_id="tiny", path=str(path), threads=1, gpu=False)))
        yield process
    finally:
        await process.close()


async def until(process: WorkerProcess, kind: type, count: int = 1) -> list:
    """Collects messages until the given number of one kind has arrived."""
    heard: list[object] = []
    async with asyncio.timeout(LIMIT):
        while sum(isinstance(message, kind) for message in heard) < count:
            heard.append(await process.receive())
    return heard


def of(heard: list, kind: type, request: int) -> list:
    return [message for message in heard if isinstance(message, kind) and message.request == request]


async def cancel_a_long_one(process: WorkerProcess) -> None:
    """The cancelled batch ends within a step, and the next request's batch begins."""
    process.send(asked(6, width=64, height=64, steps=150, scheduler="heun", progress=True))  # 299 steps
    begun = (await until(process, Progress, 2))[-1]
    process.send(Cancel(6))
    process.send(asked(7, **SMALL, steps=1))
    heard = await until(process, Finished)
    assert begun.steps == 299
    assert {message.request for message in heard if isinstance(message, Finished | Picture)} == {7}
    steps = [message.counters.steps for message in heard if isinstance(message, Stepped)]
    assert steps[-1] - steps[0] < 250


@pytest.mark.slow
async def test_a_worker_serves_many_requests_and_ends_with_its_service(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with worker(folder) as process:
        ready = (await until(process, PipelineReady))[-1]
        assert ready.family == "StableDiffusionPipeline"
        process.send(asked(1, **SMALL, count=2, progress=True, partials=1))
        process.send(asked(2, **SMALL, client="b", prompt="a" * 39))
        process.send(asked(3, **SMALL, client="b", prompt="word " * 10_000))
        process.send(asked(4, **SMALL, steps=150))
        process.send(Cancel(4))
        process.send(Cancel(99))
        process.send(asked(5, **SMALL, client="c", image=bytes(32 * 32 * 3), strength=0.5))
        heard = await until(process, Finished, 2)
        refused = {
            message.request: (message.code, message.param) for message in heard if isinstance(message, RequestRefused)
        }
        assert refused == {2: ("INVALID_REQUEST", "prompt"), 3: ("INVALID_REQUEST", "prompt")}
        assert {message.request for message in heard if isinstance(message, Finished)} == {1, 5}
        assert [message.prompt_tokens for message in of(heard, Accepted, 1)] == [2]
        assert [message.step for message in of(heard, Progress, 1)][-1] == 4
        pictures = of(heard, Picture, 1)
        assert sorted((one.index, one.partial is None) for one in pictures) == [
            (0, False),
            (0, True),
            (1, False),
            (1, True),
        ]
        assert {len(one.pixels) for one in pictures} == {32 * 32 * 3}
        assert not of(heard, Picture, 4)
        assert any(isinstance(message, Stepped) and message.counters.batch == 2 for message in heard)
        await cancel_a_long_one(process)
        process._channel.close()
        with pytest.raises(WorkerDied):
            async with asyncio.timeout(LIMIT):
                while True:
                    await process.receive()
    assert [record.getMessage() for record in caplog.records if "worker" in record.getMessage()] == []


async def test_unloadable_model_is_reported(tmp_path: Path) -> None:
    async with worker(tmp_path, "brush") as process:
        failed = (await until(process, LoadFailed))[-1]
        assert failed.code == "UNSUPPORTED"
        assert "diffusers" in failed.message
