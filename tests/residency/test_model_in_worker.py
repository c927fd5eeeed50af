"""Requests of a model in a worker: their number, their ends, and the watchdog that knows who owes what."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from services.residency.messages import Cancel, Refused, Stop
from services.residency.model_in_worker import ModelInWorker, Pending, RequestLimits
from services.residency.worker import WorkerDied
from services.rpc.errors import Internal, InvalidRequest, Overloaded, Timeout

PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Ask:
    request: int


@dataclass(frozen=True)
class Answered:
    request: int


@dataclass(frozen=True)
class Noted:
    """From a thread that has nothing to do with the answers."""


class Scripted:
    """A worker that says what the test wants."""

    pid = 1

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.killed = False
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def say(self, message: Any) -> None:
        self._inbox.put_nowait(message)

    async def messages(self) -> AsyncIterator[Any]:
        while message := await self._inbox.get():
            if isinstance(message, Exception):
                raise message
            yield message
        raise WorkerDied("worker 1 of m ended: it was killed")

    def kill(self) -> None:
        self.killed = True
        self._inbox.put_nowait(None)

    async def close(self, ask: Any = None) -> None:
        if ask:
            ask()


class Question(Pending):
    answered = False

    async def answer(self) -> bool:
        while not self.answered:
            await self._wait()
        return True

    def push(self) -> None:
        self.answered = True
        self._news.set()


class Model(ModelInWorker[Question, Any]):
    beside = (Noted,)
    emptied = 0

    def ask(self, question: Question | None = None) -> Any:
        return self._open(question or Question(), Ask)

    def _heard(self, message: Any) -> None:
        if isinstance(message, Answered) and (question := self._requests.get(message.request)):
            question.push()

    def _emptied(self) -> None:
        self.emptied += 1


@asynccontextmanager
async def running(worker: Scripted, **limits: float) -> AsyncIterator[Model]:
    plain: dict[str, Any] = {"running": 1, "queue": 1, "seconds": 600.0, "stall_seconds": 600.0}
    model = Model("m", worker, RequestLimits(**plain | limits))  # type: ignore[arg-type]
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            yield model
        finally:
            await model.close()


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110 (what it looks at tells nobody)
        await asyncio.sleep(POLL_SECONDS)


async def test_a_request_lasts_as_long_as_its_block() -> None:
    worker = Scripted()
    async with running(worker) as model:
        with model.ask() as question:
            assert worker.sent == [Ask(1)]
            worker.say(Answered(1))
            assert await question.answer()
        assert worker.sent == [Ask(1), Cancel(1)]
    assert worker.sent[-1] == Stop()


async def test_a_full_queue_names_the_setting_of_the_service() -> None:
    async with running(Scripted(), queue_variable="ALLM_MY_QUEUE") as model:
        with ExitStack() as asked:
            for _ in range(2):
                asked.enter_context(model.ask())
            with pytest.raises(Overloaded, match=r"1 requests run and 1 wait \(ALLM_MY_QUEUE\)"), model.ask():
                pass
        with model.ask():
            pass


async def test_a_request_out_of_time_names_the_setting_of_the_service() -> None:
    worker = Scripted()
    async with running(worker, seconds=0.05, seconds_variable="ALLM_MY_SECONDS") as model:
        with model.ask() as question, pytest.raises(Timeout, match=r"0.05 seconds \(ALLM_MY_SECONDS\)"):
            await question.answer()
        assert worker.sent == [Ask(1), Cancel(1)], "once"


async def test_a_refusal_ends_its_request_alone() -> None:
    worker = Scripted()
    async with running(worker) as model:
        with model.ask() as first, model.ask() as second:
            worker.say(Refused(request=1, code="INVALID_REQUEST", message="no", param="what"))
            worker.say(Answered(2))
            with pytest.raises(InvalidRequest) as caught:
                await first.answer()
            assert await second.answer()
    assert caught.value.param == "what"
    assert Cancel(1) not in worker.sent, "the worker has forgotten it"


async def test_a_dead_worker_ends_its_requests_and_takes_no_more() -> None:
    worker = Scripted()
    async with running(worker) as model:
        with model.ask() as question:
            worker.kill()
            with pytest.raises(Internal, match="it was killed"):
                await question.answer()
        assert not model.alive
        assert model.emptied == 1
        with pytest.raises(Internal, match="ask again"), model.ask():
            pass


async def test_what_cannot_be_read_is_the_end_of_the_worker() -> None:
    worker = Scripted()
    async with running(worker) as model:
        with model.ask() as question:
            worker.say(ValueError("no message"))
            with pytest.raises(Internal, match="cannot be read"):
                await question.answer()
    assert worker.killed


async def test_a_worker_that_owes_and_says_nothing_is_killed_whatever_runs_beside() -> None:
    worker = Scripted()
    async with running(worker, stall_seconds=0.2) as model:
        with model.ask() as question:
            while not worker.killed:
                worker.say(Noted())
                await asyncio.sleep(POLL_SECONDS)
            with pytest.raises(Timeout, match="no progress"):
                await question.answer()


async def test_a_worker_that_waits_for_its_caller_is_not_killed() -> None:
    """As long as anybody is owed something by it, it counts; then not."""
    worker = Scripted()
    async with running(worker, stall_seconds=0.2) as model:
        waiting, owed = Question(), Question()
        waiting.owed = None
        with model.ask(waiting):
            begun = time.monotonic()
            await until(lambda: time.monotonic() - begun > 0.6)
            assert not worker.killed
            with model.ask(owed):
                await until(lambda: worker.killed)
