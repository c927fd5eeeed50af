"""Requests of a model in a worker: limits, ends, and the watchdog that detects stalls."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import REGISTRY

from services.errors import Internal, InvalidRequest, ModelNotReady, Overloaded, Timeout
from services.rpc.deadline import Deadline, keep_deadline
from services.telemetry import logs, tracing
from services.telemetry.figures import EVENTS
from services.worker.messages import Cancel, Phase, RequestRefused, Stop
from services.worker.model_in_worker import RETRY_SECONDS, ModelInWorker
from services.worker.request_queue import LONGEST_RETRY_SECONDS, MARGIN, Pending, RequestLimits
from tests.puppet_worker import PuppetWorker

MODEL = "in-its-worker"  # no other test uses this name, so its metrics belong to this module
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
    """A message from a thread that is unrelated to the answers."""


class Scripted(PuppetWorker):
    """A worker that sends scripted messages and stops when asked."""

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
        self.answered = self.finished = True
        self._notify()


class Model(ModelInWorker[Question, Any]):
    no_progress = (Noted,)
    emptied = 0

    last = 0  # number of the newest request

    def ask(self, question: Question | None = None) -> Any:
        return self._open(question or Question(), self._asked)

    def _asked(self, request: int) -> Ask:
        self.last = request
        return Ask(request)

    def _handle(self, message: Any) -> None:
        if isinstance(message, Answered) and (question := self._requests.pop(message.request, None)):
            question.push()

    def _reset(self) -> None:
        self.emptied += 1


@asynccontextmanager
async def running(worker: Scripted, **limits: float) -> AsyncIterator[Model]:
    plain: dict[str, Any] = {"running": 1, "queue": 1, "seconds": 600.0, "stall_seconds": 600.0}
    model = Model(MODEL, worker, RequestLimits(**plain | limits))  # type: ignore[arg-type]
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
        with model.ask():
            pass
        assert worker.sent == [Ask(1), Ask(2), Cancel(2)], "what is answered need not be cancelled"
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
            worker.say(RequestRefused(request=1, code="INVALID_REQUEST", message="no", param="what"))
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
            question.begun = True
            worker.kill()
            with pytest.raises(Internal, match="it was killed"):
                await question.answer()
        assert not model.alive
        assert isinstance(model.problem, Internal)
        assert model.emptied == 1
        with pytest.raises(ModelNotReady, match="try again"), model.ask():
            pass


async def test_request_sent_shortly_before_a_worker_death_may_be_retried() -> None:
    worker = Scripted()
    async with running(worker) as model:
        with model.ask() as question:
            worker.kill()
            with pytest.raises(ModelNotReady, match="before it started") as caught:
                await question.answer()
    assert caught.value.retry_after == RETRY_SECONDS


async def test_a_worker_takes_no_more_as_soon_as_its_end_can_be_seen() -> None:
    """The reason for its end is known only some time later."""
    worker = Scripted()
    async with running(worker) as model:
        worker.ended = True
        assert not model.alive
        with pytest.raises(ModelNotReady), model.ask():
            pass
    assert worker.sent == [Stop()]


async def test_requests_of_a_dead_worker_get_its_error_although_it_is_replaced() -> None:
    worker = Scripted()
    model = Model(MODEL, worker, RequestLimits(running=1, queue=1, seconds=600.0, stall_seconds=600.0))  # type: ignore[arg-type]
    with model.ask() as question:
        question.begun, worker.ended = True, True
        worker.kill()
        await model.close()
        with pytest.raises(Internal, match="it was killed"):
            await question.answer()


async def test_unsendable_message_leaves_no_request_behind() -> None:
    class Full(Scripted):
        def send(self, message: Any) -> None:
            raise ValueError("a message of 9 bytes is over the limit")

    worker = Full()
    model = Model(MODEL, worker, RequestLimits(running=1, queue=0, seconds=600.0, stall_seconds=600.0))  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(ValueError, match="over the limit"), model.ask():
            pass
    worker.ended = True
    worker.kill()
    await until(lambda: model.emptied)


async def test_unreadable_message_ends_the_worker() -> None:
    worker = Scripted()
    async with running(worker) as model:
        with model.ask() as question:
            question.begun = True
            worker.say(ValueError("no message"))
            with pytest.raises(Internal, match="unreadable message"):
                await question.answer()
    assert worker.killed


# --- the watchdog


async def test_silent_worker_with_open_requests_is_killed_regardless_of_others() -> None:
    worker = Scripted()
    async with running(worker, stall_seconds=0.2) as model:
        with model.ask() as question:
            while not worker.killed:
                worker.say(Noted())
                await asyncio.sleep(POLL_SECONDS)
            with pytest.raises(Timeout, match="no progress"):
                await question.answer()


async def test_a_worker_that_waits_for_its_caller_is_not_killed() -> None:
    """Only a worker that owes an answer to some request can stall."""
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


@pytest.mark.parametrize("code", ["INVALID_REQUEST", "CONTEXT_LENGTH_EXCEEDED"])
async def test_refusals_do_not_hide_that_nothing_is_done(code: str) -> None:
    """Refusals come from the reader thread, which still runs when the loop hangs."""
    worker = Scripted()
    async with running(worker, stall_seconds=0.2, queue=5) as model:
        with model.ask() as question:
            while not worker.killed:
                with contextlib.suppress(InvalidRequest, ModelNotReady, Timeout), model.ask() as other:
                    worker.say(RequestRefused(request=model.last, code=code, message="no"))
                    await other.answer()
            with pytest.raises(Timeout, match="no progress"):
                await question.answer()


async def test_requests_of_a_hung_worker_end_though_the_process_does_not() -> None:
    class Undead(Scripted):
        def kill(self) -> None:
            self.killed = True

    worker = Undead()
    async with running(worker, stall_seconds=0.2) as model:
        with model.ask() as question, pytest.raises(Timeout, match=r"0.2 seconds \(ALLM_STALL_SECONDS\)"):
            await question.answer()
        assert worker.killed
        assert not model.alive
        assert isinstance(model.problem, Timeout)


async def test_no_fault_ends_the_watchdog() -> None:
    class Faulty(Question):
        faults = 3

        @property
        def owed(self) -> float | None:
            self.faults -= 1
            if self.faults >= 0:
                raise RuntimeError("a fault")
            return self.started

        @owed.setter
        def owed(self, value: float | None) -> None:
            """Ignores the value: the answer is always owed."""

    worker = Scripted()
    async with running(worker, stall_seconds=0.1) as model:
        question = Faulty()
        with model.ask(question), pytest.raises(Timeout, match="no progress"):
            await question.answer()
    assert question.faults < 0


async def test_a_service_that_stood_still_itself_blames_no_worker() -> None:
    worker = Scripted()
    async with running(worker, stall_seconds=0.4) as model:
        with model.ask() as question:
            await asyncio.sleep(0)
            still = time.monotonic()
            while time.monotonic() - still < 1.5:
                pass  # stopped, or the machine sleeps
            for _ in range(50):  # overdue timers run before the event loop reads the worker's messages
                await asyncio.sleep(0)
            assert not worker.killed
            worker.say(Answered(1))
            assert await question.answer()


# --- deadlines


@pytest.fixture
def due() -> Iterator[Callable[[float], None]]:
    """Returns a function that sets a deadline `seconds` from now."""

    def within(seconds: float) -> None:
        keep_deadline(Deadline(time.monotonic() + seconds, "the caller has waited long enough"))

    yield within
    keep_deadline(None)


async def test_a_callers_deadline_ends_a_request_in_the_callers_words(due: Callable[[float], None]) -> None:
    worker = Scripted()
    async with running(worker) as model:
        due(0.05)
        with model.ask() as question, pytest.raises(Timeout, match="long enough"):
            await question.answer()
        assert worker.sent == [Ask(1), Cancel(1)]


async def test_so_it_does_where_the_worker_has_noticed_first(due: Callable[[float], None]) -> None:
    worker = Scripted()
    async with running(worker) as model:
        due(500)
        with model.ask() as question:
            worker.say(RequestRefused(request=1, code="TIMEOUT", message="late"))
            with pytest.raises(Timeout, match="long enough"):
                await question.answer()


async def test_the_limit_of_the_service_holds_all_the_same(due: Callable[[float], None]) -> None:
    async with running(Scripted(), seconds=0.05) as model:
        due(500)
        with model.ask() as question, pytest.raises(Timeout, match="ALLM_REQUEST_SECONDS"):
            await question.answer()


async def test_expired_request_is_never_sent(due: Callable[[float], None]) -> None:
    worker = Scripted()
    async with running(worker) as model:
        due(-0.001)
        with pytest.raises(Timeout, match="long enough"), model.ask():
            pass
        assert worker.sent == []


# --- overload


async def answered(model: Model, worker: Scripted, times: int) -> None:
    """Makes `times` requests, answered one after the other."""
    for _ in range(times):
        with model.ask() as question:
            worker.say(Answered(model.last))
            await question.answer()


async def test_retry_after_is_the_time_until_half_of_the_requests_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Scripted()
    async with running(worker, running=1, queue=7) as model:
        await answered(model, worker, 4)
        monkeypatch.setattr(model._requests._rate, "seconds_for", lambda requests: 2.5 * requests)
        with ExitStack() as asked:
            for _ in range(8):
                asked.enter_context(model.ask())
            with pytest.raises(Overloaded) as caught, model.ask():
                pass
            assert caught.value.retry_after == 4 * 2.5
            worker.say(RequestRefused(request=model.last, code="OVERLOADED", message="too many tokens"))
            last = model._requests[model.last]
            with pytest.raises(Overloaded) as caught:
                await last.answer()
            assert caught.value.retry_after == 3 * 2.5
            monkeypatch.setattr(model._requests._rate, "seconds_for", lambda requests: 900.0)
            with model.ask(), pytest.raises(Overloaded) as caught, model.ask():
                pass
            assert caught.value.retry_after == LONGEST_RETRY_SECONDS


async def test_request_that_cannot_meet_its_deadline_is_refused_at_once(
    due: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Scripted()
    async with running(worker, running=1, queue=9) as model:
        monkeypatch.setattr(model._requests._rate, "seconds_for", lambda requests: 10.0 * requests)
        due(5)
        with model.ask():  # first in the queue
            due(25 * MARGIN)  # between the estimates for the second and the third request
            with model.ask():
                with (
                    pytest.raises(Overloaded, match="about 30 seconds, too long for the request's deadline"),
                    model.ask(),
                ):
                    pass
                keep_deadline(None)
                with model.ask():  # a request without a deadline is admitted
                    pass


# --- metrics of running and waiting requests


def reported(state: str) -> float:
    return REGISTRY.get_sample_value(f"allm_requests_{state}", {"model": MODEL}) or 0.0


async def test_unplaced_request_waits_and_a_cancelled_one_is_not_counted() -> None:
    async with running(Scripted(), queue=5) as model:
        with ExitStack() as asked:
            for _ in range(3):
                asked.enter_context(model.ask())
            assert (reported("running"), reported("waiting")) == (0, 3)
            model._set_gauges(1, 2)  # as a model does with the counts of its worker's steps
            assert (reported("running"), reported("waiting")) == (1, 2)
            model._set_gauges(1, 0)
            assert (reported("running"), reported("waiting")) == (1, 2), "the worker has not looked at two of them"
        model._set_gauges(0, 0)
        assert (reported("running"), reported("waiting")) == (0, 0)


@pytest.mark.parametrize("end", ["refused", "cancelled", "died", "closed"])
async def test_however_a_request_ends_it_is_no_longer_counted(end: str) -> None:
    worker = Scripted()
    with contextlib.suppress(InvalidRequest, Internal, ModelNotReady, asyncio.CancelledError):
        async with running(worker) as model:
            with model.ask() as question:
                model._set_gauges(1, 0)
                assert reported("running") == 1
                match end:
                    case "refused":
                        worker.say(RequestRefused(request=1, code="INVALID_REQUEST", message="no"))
                        model._set_gauges(0, 0)  # with the worker's next step
                    case "cancelled":
                        model._set_gauges(0, 0)
                        raise asyncio.CancelledError
                    case "died":
                        worker.kill()
                    case "closed":
                        await model.close()
                await question.answer()
    assert (reported("running"), reported("waiting")) == (0, 0)
    assert REGISTRY.get_sample_value("allm_models_loaded", {"model": MODEL}) == 0


async def test_the_time_in_the_queue_ends_with_the_first_place() -> None:
    def measured(part: str) -> float:
        return REGISTRY.get_sample_value(f"allm_request_queue_seconds_{part}", {"model": MODEL}) or 0.0

    before = measured("count"), measured("sum")
    async with running(Scripted(), queue=5) as model:
        with model.ask() as question, model.ask(Question()) as unmeasured:
            unmeasured.queued_since = None
            assert question.queued_since is not None
            model._entered([Phase(1, "prefill", question.queued_since + 2.0), Phase(2, "prefill", time.monotonic())])
            model._entered([Phase(1, "queue", question.queued_since + 3.0)])
            model._entered([Phase(1, "prefill", question.queued_since + 9.0)])
    assert (measured("count") - before[0], measured("sum") - before[1]) == (1, pytest.approx(2.0))


async def test_deaths_are_counted_from_zero() -> None:
    """Prometheus sees no increase in a counter that starts at 1."""
    name, labels = "allm_worker_deaths_total", {"model": MODEL}
    worker = Scripted()
    async with running(worker) as model:
        before = REGISTRY.get_sample_value(name, labels)
        assert before is not None
        worker.kill()
        await until(lambda: not model.alive)
        assert REGISTRY.get_sample_value(name, labels) == before + 1


# --- requests in spans, logs and events


async def test_the_phases_of_a_request_become_spans_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[tuple[list[str], bool, str]] = []

    def record(phases: Any, ended: float | None, counts: Any, problem: str) -> None:
        assert [at for _, at in phases] == sorted(at for _, at in phases)
        recorded.append(([name for name, _ in phases], ended is None, problem))

    monkeypatch.setattr(tracing, "tracer", object())
    monkeypatch.setattr(tracing, "record_phases", record)
    worker = Scripted()
    async with running(worker) as model:
        with model.ask() as question:
            model._entered([Phase(1, "prefill", time.monotonic()), Phase(9, "decode", time.monotonic())])
            worker.say(Answered(1))
            await question.answer()
        with model.ask():
            pass
        with pytest.raises(InvalidRequest), model.ask() as question:
            worker.say(RequestRefused(request=3, code="INVALID_REQUEST", message="no"))
            await question.answer()
    assert recorded == [
        (["queue", "prefill"], True, ""),
        (["queue"], True, "CANCELLED"),
        (["queue"], False, "INVALID_REQUEST"),
    ]


async def test_later_worker_logs_lack_the_request_that_loaded_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "services.worker.model_in_worker.log.error", lambda text, **_: seen.append((text, logs.request_id.get()))
    )
    logs.request_id.set("id-1")
    worker = Scripted()
    async with running(worker) as model:
        worker.say(None)
        await until(lambda: not model.alive)
    assert seen == [("worker died", "")]


async def test_the_death_of_a_worker_is_an_event() -> None:
    worker = Scripted()
    async with running(worker) as model:
        before = [number for number, _ in EVENTS.after(0)]
        worker.say(None)
        await until(lambda: not model.alive)
        (event,) = [event for number, event in EVENTS.after(max(before, default=0)) if event.kind == "worker_died"]
    assert event.model == MODEL
