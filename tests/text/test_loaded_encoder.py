"""A loaded embedding model with a scripted worker."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from services.errors import ContextLengthExceeded, InvalidRequest, ModelNotReady, Overloaded, Timeout
from services.settings.settings import load_settings
from services.text.engine.messages import Accepted, Counters, Embed, Embedded, Encoded, EncoderReady, FromWorker
from services.text.loaded_encoder import LoadedEncoder
from services.worker.messages import Cancel, Refused
from services.worker.process import WorkerDied
from tests.minilm import ENCODER
from tests.text.service import PATIENCE_SECONDS

COUNTERS = Counters(steps=1, running=0, waiting=0, active_cells=0, cached_cells=0, preempted=0)
READY = EncoderReady(context_tokens=8, dimensions=2, vocabulary=9)


class Scripted:
    """A worker that sends nothing by itself."""

    pid, peak_memory, ended = 1, 0, False

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.killed = asyncio.Event()
        self._inbox: asyncio.Queue[FromWorker | None] = asyncio.Queue()

    def send(self, message: Any) -> None:
        self.sent.put_nowait(message)

    def say(self, *messages: FromWorker) -> None:
        for message in messages:
            self._inbox.put_nowait(message)

    def vectors(self, request: int, *indexes: int) -> None:
        """Sends the vectors (index, request)."""
        found = [Embedded(request, index, struct.pack("<2f", index, request)) for index in indexes]
        self.say(Encoded(found, COUNTERS))

    async def messages(self) -> AsyncIterator[FromWorker]:
        while message := await self._inbox.get():
            yield message
        raise WorkerDied("it was killed")

    def kill(self) -> None:
        self.killed.set()
        self._inbox.put_nowait(None)

    async def close(self, ask: Any = None) -> None:
        self.kill()


@asynccontextmanager
async def loaded(worker: Any, **limits: Any) -> AsyncIterator[LoadedEncoder]:
    model = LoadedEncoder(ENCODER, worker, READY, replace(load_settings({}).text, **limits))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield model
    finally:
        await model.close()


def unpacked(vectors: list[bytes]) -> list[tuple[float, ...]]:
    return [struct.unpack("<2f", vector) for vector in vectors]


async def test_vectors_come_back_in_the_order_of_the_inputs_however_they_arrive() -> None:
    worker = Scripted()
    labels = {"model": ENCODER}
    before = REGISTRY.get_sample_value("allm_prompt_tokens_total", labels) or 0
    async with loaded(worker) as model:
        asked = asyncio.create_task(model.embed("me", ["a", [5], "c"], 2, "inputs[]"))
        embed = await worker.sent.get()
        expected = Embed(request=1, client="me", inputs=["a", [5], "c"], dimensions=2, param="inputs[]")
        assert embed == expected
        worker.say(Accepted(1, 7))
        worker.vectors(1, 2)
        worker.vectors(1, 0, 1)
        worker.vectors(99, 0)
        vectors, tokens = await asked
        assert (unpacked(vectors), tokens) == ([(0, 1), (1, 1), (2, 1)], 7)
        assert worker.sent.empty(), "nothing is cancelled that has ended"
    assert REGISTRY.get_sample_value("allm_prompt_tokens_total", labels) == before + 7


async def test_a_caller_who_gives_up_cancels_the_request() -> None:
    worker = Scripted()
    async with loaded(worker) as model:
        asked = asyncio.create_task(model.embed("me", ["a"]))
        assert isinstance(await worker.sent.get(), Embed)
        asked.cancel()
        assert await worker.sent.get() == Cancel(1)
        with pytest.raises(asyncio.CancelledError):
            await asked


async def test_refusals_reach_the_caller_and_others_go_on() -> None:
    worker = Scripted()
    async with loaded(worker) as model:
        first, second = (asyncio.create_task(model.embed("me", [text])) for text in "ab")
        for _ in range(2):
            await worker.sent.get()
        worker.say(Refused(request=1, code="CONTEXT_LENGTH_EXCEEDED", message="too long", param="input[0]"))
        worker.say(Accepted(2, 1))
        worker.vectors(2, 0)
        with pytest.raises(ContextLengthExceeded, match="too long") as caught:
            await first
        assert caught.value.param == "input[0]"
        assert unpacked((await second)[0]) == [(0, 2)]


async def test_vectors_longer_than_the_models_are_refused_before_the_worker_hears_of_it() -> None:
    worker = Scripted()
    async with loaded(worker) as model:
        with pytest.raises(InvalidRequest, match=r"'dimensions' is 3, but vectors of .* have 2") as caught:
            await model.embed("me", ["a"], 3)
        assert caught.value.param == "dimensions"
        assert worker.sent.empty()


async def test_beyond_the_queue_requests_are_refused() -> None:
    worker = Scripted()
    async with loaded(worker, max_sequences=1, queue_limit=1) as model:
        running = [asyncio.create_task(model.embed("me", ["a"])) for _ in range(2)]
        for _ in running:
            await worker.sent.get()
        with pytest.raises(Overloaded, match="ALLM_QUEUE_LIMIT"):
            await model.embed("me", ["a"])
        for number, task in enumerate(running, start=1):
            worker.say(Accepted(number, 1))
            worker.vectors(number, 0)
            await task


async def test_a_worker_that_hangs_is_killed_and_its_requests_time_out() -> None:
    worker = Scripted()
    async with loaded(worker, stall_seconds=0.2) as model:
        asked = asyncio.create_task(model.embed("me", ["a", "b"]))
        worker.say(Accepted(1, 2))
        worker.vectors(1, 0)
        with pytest.raises(Timeout, match="no progress"):
            await asked
        assert worker.killed.is_set()
        with pytest.raises(ModelNotReady, match="just ended"):
            await model.embed("me", ["a"])
