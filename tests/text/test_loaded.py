"""Loaded models: crashed, hung, not read, impossible to load; tested alone and in a real stack."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import psutil
import pytest
from allm.models.v1 import model_pb2, model_service_pb2, model_service_pb2_grpc
from prometheus_client import REGISTRY

from services.auth.caller import Caller, keep_caller
from services.auth.identity import INFERENCE, Identity
from services.errors import ContextLengthExceeded, InvalidRequest, ModelNotReady, Overloaded, Timeout
from services.settings.settings import load_settings
from services.text.engine.messages import (
    Accepted,
    Counters,
    DecoderReady,
    Embed,
    Embedded,
    Encoded,
    EncoderReady,
    FromWorker,
    Hold,
    Piece,
    Stepped,
    Submit,
    TokenLogprob,
)
from services.text.engine.sampling import SamplingParams
from services.text.loaded import UNREAD_BYTES, Answer, LoadedTextModel
from services.text.loaded_encoder import LoadedEncoder
from services.text.template_process import TemplateProcess
from services.worker.messages import Cancel, RequestRefused
from services.worker.process import WorkerDied
from tests.minilm import ENCODER
from tests.operator_side import Operator
from tests.presets import BROKEN, HOLLOW, STRANGE
from tests.processes import has_ended
from tests.puppet_worker import PuppetWorker
from tests.stack import ALIAS, MODEL, POLL_SECONDS, Stack
from tests.text.puppet_service import READY
from tests.text.service import (
    PATIENCE_SECONDS,
    RUNNING,
    Reply,
    asking,
    chat,
    counter,
    error_of,
    in_band_error,
    listed,
    long_chat,
    post,
    reply_to,
    streaming,
    typed_chat,
    typed_stream,
    wait_until,
    warm,
    workers,
)

STREAMS = 3
COMING = 12
TYPED_LONG = typed_chat("Count.", max_tokens=8000, ignore_eos=True)


# --- alone, with a scripted worker


def accepting() -> PuppetWorker:
    """Returns a worker whose reader accepts every request and whose batch loop does nothing."""
    return PuppetWorker(lambda sent: Accepted(sent.request, 3) if isinstance(sent, Submit) else None)


@asynccontextmanager
async def loaded(worker: Any, ready: DecoderReady = READY, **limits: float) -> AsyncIterator[LoadedTextModel]:
    settings = replace(load_settings({}).text, **limits)
    model = LoadedTextModel(MODEL, "llama", worker, ready, settings, TemplateProcess(MODEL, 1))
    try:
        yield model
    finally:
        await model.close()


async def test_new_requests_do_not_hide_that_the_batch_loop_hangs() -> None:
    """Another thread of the worker keeps accepting them."""
    worker = accepting()
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        loaded(worker, stall_seconds=0.5) as model,
        AsyncExitStack() as running,
    ):
        first = await running.enter_async_context(model.generate("me", "Hello.", SamplingParams()))
        while not worker.killed:
            async with model.generate("me", "Hello.", SamplingParams()):
                await asyncio.sleep(POLL_SECONDS)
        with pytest.raises(Timeout, match="no progress"):
            await first.ready()


async def test_a_request_out_of_time_is_cancelled_though_its_caller_does_not_read() -> None:
    worker = accepting()
    async with asyncio.timeout(PATIENCE_SECONDS), loaded(worker, request_seconds=0.1) as model:
        async with model.generate("me", "Hello.", SamplingParams()) as answer:
            while not any(isinstance(message, Cancel) for message in worker.sent):
                worker.say(Stepped([Piece(1, "word", None, 1, 0)], model.counters))
                await asyncio.sleep(POLL_SECONDS)
            assert {piece.text for piece in await answer.ready()} == {"word"}
            with pytest.raises(Timeout, match="ALLM_REQUEST_SECONDS"):
                await answer.ready()
        assert sum(isinstance(message, Cancel) for message in worker.sent) == 1


async def test_two_keys_share_a_full_queue_and_a_single_key_may_fill_it() -> None:
    worker = accepting()

    async def ask(key: str) -> Any:
        keep_caller(Caller(Identity(key, frozenset((INFERENCE,)))))
        async with model.generate(key, "Hello.", SamplingParams()) as answer:
            return await answer.ready()

    async def asked(key: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(ask(key))
        await asyncio.sleep(0)
        return task

    one_place = replace(READY, max_sequences=1)
    async with asyncio.timeout(PATIENCE_SECONDS), loaded(worker, one_place, queue_limit=3) as model:
        greedy = [await asked("greedy") for _ in range(4)]
        with pytest.raises(Overloaded, match="ALLM_QUEUE_LIMIT"):
            await (await asked("greedy"))
        others = [await asked("other") for _ in range(2)]
        for refused in greedy[2:]:
            with pytest.raises(Overloaded, match="ALLM_QUEUE_LIMIT"):
                await refused
        with pytest.raises(Overloaded, match="ALLM_QUEUE_LIMIT"):  # two and two
            await (await asked("other"))
        assert [message.request for message in worker.sent if isinstance(message, Cancel)] == [4, 3]
        worker.say(Stepped([Piece(number, "word", "stop", 1, 0) for number in (1, 2, 5, 6)], model.counters))
        assert all([await task for task in (*greedy[:2], *others)])


async def test_unread_answer_is_held_until_it_is_read() -> None:
    worker = accepting()
    async with asyncio.timeout(PATIENCE_SECONDS), loaded(worker, stall_seconds=0.5) as model:  # noqa: SIM117 (too long)
        async with model.generate("me", "Hello.", SamplingParams()) as answer:
            words = 0
            while Hold(1, held=True) not in worker.sent:
                worker.say(Stepped([Piece(1, "word " * 100, None, 1, 0)], model.counters))
                words += 1
                await asyncio.sleep(0)
            assert words * 500 <= UNREAD_BYTES + 2000
            begun = time.monotonic()
            while time.monotonic() - begun < 1.0:  # noqa: ASYNC110 (nothing shall happen)
                await asyncio.sleep(POLL_SECONDS)
            assert not worker.killed, "it does nothing, as scripted"
            assert len("".join(piece.text for piece in await answer.ready())) == words * 500
            assert worker.sent[-1] == Hold(1, held=False)
            with pytest.raises(Timeout, match="no progress"):
                await answer.ready()


@pytest.mark.parametrize(("logprobs", "most"), [(0, 4000), (20, 200)])
async def test_unread_logprobs_are_counted(logprobs: int, most: int) -> None:
    held: list[bool] = []
    answer = Answer(held.append)
    top = [(b"token", -1.0)] * logprobs
    for _ in range(most):
        answer.push(Piece(1, "token", None, 1, 0, [TokenLogprob(b"token", -1.0, top)] if logprobs else None))
    assert held == [True]
    answer.push(Piece(1, "", "stop", 1, 0))
    assert len(await answer.ready()) == most + 1
    assert held == [True], "it has ended"


# --- in a stack


@pytest.fixture
def own(breakable: Operator) -> Stack:
    return breakable.stack


def only_worker(stack: Stack) -> psutil.Process:
    warm(stack)
    (worker,) = workers(stack)
    return worker


def wait_replaced(stack: Stack, worker: psutil.Process) -> None:
    """Waits until another worker, the only one left, answers requests."""
    wait_until(stack, lambda: has_ended(worker))
    assert only_worker(stack) != worker


# --- models that cannot be served


def typed_model(stack: Stack, name: str) -> model_pb2.Model:
    with grpc.insecure_channel(stack.grpc_address) as channel:
        models = model_service_pb2_grpc.ModelServiceStub(channel)
        return models.GetModel(model_service_pb2.GetModelRequest(id=name), timeout=PATIENCE_SECONDS).model


def ask(stack: Stack, model: str) -> Reply:
    return post(stack, json.dumps({**json.loads(chat()), "model": model}).encode())


def test_unservable_model_is_not_listed(own: Stack) -> None:
    assert sorted(listed(own)) == sorted([MODEL, ALIAS, HOLLOW])


def test_a_broken_file_is_refused_by_name_and_the_others_are_served(own: Stack) -> None:
    said = (own.home / "output.txt").read_text()
    assert f"{BROKEN} was not registered: " in said
    assert f"{BROKEN}.gguf" in said
    reply = ask(own, BROKEN)
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


def test_an_unknown_architecture_is_unsupported_and_named(own: Stack) -> None:
    model = typed_model(own, STRANGE)
    assert model.state == model_pb2.MODEL_STATE_UNSUPPORTED
    assert "made-up" in model.reason
    reply = ask(own, STRANGE)
    assert (reply.status, reply.error["code"]) == (501, "unsupported")
    assert reply.error["message"] == model.reason


def test_a_file_without_weights_is_refused_when_it_is_loaded_and_hurts_no_other_model(own: Stack) -> None:
    worker = only_worker(own)
    reply = ask(own, HOLLOW)
    assert (reply.status, reply.error["code"]) == (400, "model_invalid")
    assert f"{HOLLOW}.gguf" in reply.error["message"]
    assert only_worker(own) == worker


# --- crashes


def test_a_killed_worker_ends_its_requests_with_internal_and_the_next_gets_a_fresh_one(own: Stack) -> None:
    worker, service = only_worker(own), own.note["children"]["text"]
    with ExitStack() as callers:
        streams = [callers.enter_context(streaming(own, long_chat(stream=True))) for _ in range(STREAMS)]
        typed = callers.enter_context(typed_stream(own, TYPED_LONG))
        whole = callers.enter_context(asking(own, long_chat()))
        wait_until(own, lambda: counter(own, RUNNING) == STREAMS + 2)
        worker.kill()
        for stream in streams:
            error = in_band_error(stream)
            assert (error["type"], error["code"]) == ("server_error", "internal")
            assert "SIGKILL" in error["message"]
        reported = error_of(typed)
        assert (reported.code, reported.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
        assert reported.message == error["message"]
        reply = reply_to(whole)
        assert (reply.status, reply.error) == (500, error)
    wait_replaced(own, worker)
    assert own.note["children"]["text"] == service
    assert psutil.Process(service).is_running()


def test_requests_that_come_while_a_worker_dies_are_answered_or_asked_to_retry(own: Stack) -> None:
    """These callers did nothing wrong, and nothing was lost: they never get a 500."""
    worker = only_worker(own)
    begin = threading.Barrier(COMING + 1)

    def ask_now(number: int) -> Reply:
        begin.wait()
        return post(own, chat(temperature=0, max_tokens=4))

    with ThreadPoolExecutor(COMING) as callers:
        replies = [callers.submit(ask_now, number) for number in range(COMING)]
        worker.kill()  # killed first, because requests that it had begun would end with an error
        begin.wait()
        for reply in (each.result() for each in replies):
            assert reply.status in (200, 503), reply.body
            if reply.status == 503:
                assert reply.error["code"] == "model_not_ready"
                assert int(reply.headers["retry-after"]) >= 1
    wait_replaced(own, worker)


def test_a_killed_service_takes_its_worker_with_it_and_comes_back(own: Stack) -> None:
    worker, service = only_worker(own), own.note["children"]["text"]
    with streaming(own, long_chat(stream=True)):
        os.kill(service, signal.SIGKILL)
        wait_until(own, lambda: has_ended(worker))
    wait_until(own, lambda: own.note["children"].get("text") not in (None, service))
    own.wait_healthy()
    wait_replaced(own, worker)


COUNTERS = Counters(steps=1, running=0, waiting=0, active_cells=0, cached_cells=0, preempted=0)
ENCODER_READY = EncoderReady(context_tokens=8, dimensions=2, vocabulary=9)


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
async def loaded_encoder(worker: Any, **limits: Any) -> AsyncIterator[LoadedEncoder]:
    model = LoadedEncoder(ENCODER, worker, ENCODER_READY, replace(load_settings({}).text, **limits))
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
    async with loaded_encoder(worker) as model:
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
    async with loaded_encoder(worker) as model:
        asked = asyncio.create_task(model.embed("me", ["a"]))
        assert isinstance(await worker.sent.get(), Embed)
        asked.cancel()
        assert await worker.sent.get() == Cancel(1)
        with pytest.raises(asyncio.CancelledError):
            await asked


async def test_refusals_reach_the_caller_and_others_go_on() -> None:
    worker = Scripted()
    async with loaded_encoder(worker) as model:
        first, second = (asyncio.create_task(model.embed("me", [text])) for text in "ab")
        for _ in range(2):
            await worker.sent.get()
        worker.say(RequestRefused(request=1, code="CONTEXT_LENGTH_EXCEEDED", message="too long", param="input[0]"))
        worker.say(Accepted(2, 1))
        worker.vectors(2, 0)
        with pytest.raises(ContextLengthExceeded, match="too long") as caught:
            await first
        assert caught.value.param == "input[0]"
        assert unpacked((await second)[0]) == [(0, 2)]


async def test_too_many_dimensions_are_refused_before_the_worker() -> None:
    worker = Scripted()
    async with loaded_encoder(worker) as model:
        with pytest.raises(InvalidRequest, match=r"'dimensions' is 3, but vectors of .* have 2") as caught:
            await model.embed("me", ["a"], 3)
        assert caught.value.param == "dimensions"
        assert worker.sent.empty()


async def test_beyond_the_queue_requests_are_refused() -> None:
    worker = Scripted()
    async with loaded_encoder(worker, max_sequences=1, queue_limit=1) as model:
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
    async with loaded_encoder(worker, stall_seconds=0.2) as model:
        asked = asyncio.create_task(model.embed("me", ["a", "b"]))
        worker.say(Accepted(1, 2))
        worker.vectors(1, 0)
        with pytest.raises(Timeout, match="no progress"):
            await asked
        assert worker.killed.is_set()
        with pytest.raises(ModelNotReady, match="just ended"):
            await model.embed("me", ["a"])
