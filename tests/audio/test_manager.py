"""The audio manager: its runtimes and workers; and a loaded Whisper model with a scripted worker."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from services.audio.engine.__main__ import RUNTIMES
from services.audio.engine.messages import (
    Consumed,
    Counters,
    Decoding,
    Finished,
    LanguageFound,
    PartialText,
    Segment,
    Sound,
    Stepped,
    Submit,
    Transcribed,
    WhisperReady,
)
from services.audio.engine.runtime import Runtime
from services.audio.manager import SOUND_AHEAD, SOUND_OWED, UNREAD, WORKER_MODULE, LoadedWhisper
from services.errors import Internal, InvalidRequest, ModelInvalid, Overloaded, Timeout
from services.models.runtime_choice import EngineRegistry
from services.models.runtimes import RUNTIMES as PROMISED
from services.settings.settings import load_settings
from services.worker.messages import Cancel, RequestRefused
from tests.audio.transcribing import stored, transcribing
from tests.puppet_worker import PuppetWorker
from tests.whisper_weights import tiny_en_ct2


def test_the_worker_has_exactly_the_audio_runtimes_of_the_registry() -> None:
    assert set(RUNTIMES) == {runtime.name for runtime in PROMISED if runtime.modality == "audio"}


@pytest.mark.parametrize("name", sorted(RUNTIMES))
def test_a_runtime_is_in_a_module_of_its_name_and_can_all_that_the_loop_asks(name: str) -> None:
    module, kind = RUNTIMES[name]
    assert module == f"services.audio.engine.runtimes.{name}"
    engine = getattr(importlib.import_module(module), kind)
    asked = {member for member, _ in inspect.getmembers(Runtime, inspect.isfunction) if not member.startswith("_")}
    assert asked
    for member in asked:
        theirs, ours = inspect.signature(getattr(Runtime, member)), inspect.signature(getattr(engine, member))
        assert list(ours.parameters) == list(theirs.parameters), member


def test_the_workers_module_can_be_executed() -> None:
    assert importlib.util.find_spec(f"{WORKER_MODULE}.__main__") is not None


async def test_model_with_missing_weights_is_reported_by_name_and_leaves_no_worker(tmp_path: Path) -> None:
    async with transcribing(tmp_path, {}) as audio:
        serving = stored("tiny", tiny_en_ct2(), EngineRegistry("cpu", forced=True)).serving
        assert serving
        lost = replace(serving.descriptor, primary=tmp_path / "nothing")
        with pytest.raises(ModelInvalid, match="nothing"):
            async with audio.manager.lease(lost, serving.runtime):
                pass
        assert audio.residents == []


MODEL = "scripted-whisper"
PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.01
SECOND = bytes(2 * 16_000)


class Scripted(PuppetWorker):
    """A worker that sends only scripted messages."""

    @property
    def sound(self) -> int:
        """Counts the samples that the worker has received."""
        return sum(len(message.samples) for message in self.sent if isinstance(message, Sound)) // 2


@asynccontextmanager
async def loaded(worker: Any, **limits: float) -> AsyncIterator[LoadedWhisper]:
    ready = WhisperReady(languages=["en"], multilingual=False, batch_windows=2)
    model = LoadedWhisper(MODEL, worker, ready, replace(load_settings({}).audio, **limits))
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            yield model
        finally:
            await model.close()


def segment(index: int) -> Segment:
    return Segment(
        index=index,
        seek=0,
        start=float(index),
        end=index + 1.0,
        text=f" {index}",
        tokens=[index],
        temperature=0.0,
        avg_logprob=-0.1,
        compression_ratio=1.0,
        no_speech_prob=0.0,
    )


def metric(name: str) -> float:
    return REGISTRY.get_sample_value(name, {"model": MODEL}) or 0.0


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110 (what it looks at tells nobody)
        await asyncio.sleep(POLL_SECONDS)


# --- messages


async def test_a_request_is_its_options_then_its_sound_and_gives_its_news_in_order() -> None:
    worker, decoding = Scripted(), Decoding(prompt="Hello")
    news = (
        LanguageFound(1, "en", 1.0),
        Transcribed(1, [segment(0)]),
        Transcribed(1, [segment(1)]),
        Finished(1, "en", 2.0, 1.5, 7),
    )
    async with loaded(worker) as model:
        with model.transcribe("me", decoding) as job:
            await job.feed(SECOND)
            await job.feed(SECOND, last=True)
            worker.say(*news)
            assert [await job.next() for _ in news] == list(news)
        assert worker.sent == [Submit(1, "me", decoding), Sound(1, SECOND), Sound(1, SECOND, last=True)]


async def test_early_leaver_cancels_and_gets_no_more_events() -> None:
    worker = Scripted()
    async with loaded(worker) as model:
        with model.transcribe("me", Decoding()):
            pass
        worker.say(Transcribed(1, [segment(0)]), Consumed(1, 5), Finished(1, "en", 1.0, 1.0, 1))
        with model.transcribe("me", Decoding()) as job:
            worker.say(LanguageFound(2, "en", 1.0))
            assert await job.next() == LanguageFound(2, "en", 1.0)
        assert [message for message in worker.sent if isinstance(message, Cancel)] == [Cancel(1), Cancel(2)]


async def test_only_the_newest_partial_text_waits() -> None:
    worker = Scripted()
    async with loaded(worker) as model:
        with model.transcribe("me", Decoding(live=True)) as job:
            worker.say(*(PartialText(1, text, 0.0, 1.0) for text in ("I", "I am", "I am here")))
            worker.say(Transcribed(1, [segment(0)]), PartialText(1, "And", 1.0, 2.0), Stepped(Counters(9, 1, 0, 1)))
            await until(lambda: model.counters.steps == 9)
            assert await job.next() == Transcribed(1, [segment(0)])
            assert await job.next() == PartialText(1, "And", 1.0, 2.0)


async def test_sound_is_processed_once_its_text_arrived_or_the_worker_released_it() -> None:
    worker = Scripted()
    async with loaded(worker) as model:
        with model.transcribe("me", Decoding()) as job:
            await job.feed(5 * SECOND)
            assert job.processed_seconds == 0
            worker.say(Transcribed(1, [segment(0), segment(1)]))
            await job.next()
            assert job.processed_seconds == 2
            worker.say(PartialText(1, "And", 2.0, 3.0))
            await job.next()
            assert job.processed_seconds == 3
            worker.say(Consumed(1, 4 * 16_000), LanguageFound(1, "en", 1.0))
            await job.next()
            assert job.processed_seconds == 4
            worker.say(Finished(1, "en", 5.0, 1.0, 2))
            await job.next()
            assert job.processed_seconds == 5


async def test_messages_before_an_error_are_received_before_it() -> None:
    worker = Scripted()
    async with loaded(worker) as model:
        with model.transcribe("me", Decoding()) as job:
            worker.say(
                LanguageFound(1, "en", 1.0),
                RequestRefused(request=1, code="INVALID_REQUEST", message="no", param="vad"),
            )
            assert await job.next() == LanguageFound(1, "en", 1.0)
            for ask in (job.next(), job.feed(SECOND)):
                with pytest.raises(InvalidRequest) as caught:
                    await ask
                assert caught.value.param == "vad"
    assert worker.sound == 0


# --- limits


async def test_sound_waits_while_the_worker_has_enough() -> None:
    worker, block = Scripted(), SECOND * 60
    async with loaded(worker) as model:
        with model.transcribe("me", Decoding()) as job:
            pump = asyncio.create_task(job.feed(b""))
            while pump.done() or worker.sound < SOUND_AHEAD:
                await pump
                pump = asyncio.create_task(job.feed(block))
                await asyncio.sleep(0)
            assert worker.sound == SOUND_AHEAD
            worker.say(Consumed(1, 16_000))
            await pump
            assert worker.sound == SOUND_AHEAD + 60 * 16_000


async def test_sound_waits_for_a_reader() -> None:
    worker = Scripted()
    async with loaded(worker) as model:
        with model.transcribe("me", Decoding()) as job:
            worker.say(*(Transcribed(1, [segment(index)]) for index in range(UNREAD)), Stepped(Counters(9, 1, 0, 1)))
            await until(lambda: model.counters.steps == 9)
            pump = asyncio.create_task(job.feed(SECOND))
            await asyncio.sleep(0)
            assert not pump.done()
            await job.next()
            await pump
    assert worker.sound == 16_000


@pytest.mark.parametrize("end", ["dies", "refuses", "fails"])
async def test_end_of_a_request_ends_the_wait_of_its_sound(end: str) -> None:
    worker = Scripted()
    async with loaded(worker) as model:
        with model.transcribe("me", Decoding()) as job:
            await job.feed(bytes(2 * SOUND_AHEAD))
            job.begun = True
            pump = asyncio.create_task(job.feed(SECOND))
            await asyncio.sleep(0)
            if end == "dies":
                worker.kill()
            elif end == "refuses":
                worker.say(RequestRefused(request=1, code="INTERNAL", message="no"))
            else:
                job.fail(Internal("no"))
            with pytest.raises(Internal):
                await pump


async def test_more_requests_than_windows_and_queue_are_refused() -> None:
    refused = pytest.raises(Overloaded, match="ALLM_AUDIO_QUEUE")
    async with loaded(Scripted(), queue_limit=0) as model:
        with (
            model.transcribe("me", Decoding()),
            model.transcribe("you", Decoding()),
            refused,
            model.transcribe("she", Decoding()),
        ):
            pass


async def test_a_request_out_of_time_names_its_setting() -> None:
    async with loaded(Scripted(), request_seconds=0.05) as model:
        with model.transcribe("me", Decoding()) as job, pytest.raises(Timeout, match="ALLM_AUDIO_REQUEST_SECONDS"):
            await job.next()


# --- the watchdog


@pytest.mark.parametrize("sound", [b"", SECOND])
async def test_a_worker_that_waits_for_sound_is_not_killed(sound: bytes) -> None:
    worker = Scripted()
    async with loaded(worker, stall_seconds=0.2) as model:
        with model.transcribe("me", Decoding(live=True)) as job:
            await job.feed(sound)
            begun = time.monotonic()
            await until(lambda: time.monotonic() - begun > 0.6)
        assert not worker.killed


@pytest.mark.parametrize(("sound", "last"), [(b"", True), (bytes(2 * SOUND_OWED), False)])
async def test_a_worker_that_has_what_it_needs_and_does_nothing_is_killed(sound: bytes, last: bool) -> None:
    worker = Scripted()
    async with loaded(worker, stall_seconds=0.2) as model:
        with model.transcribe("me", Decoding()) as job:
            await job.feed(sound, last=last)
            with pytest.raises(Timeout, match="no progress"):
                await job.next()
        assert worker.killed
        assert not model.alive


async def test_steps_for_others_are_progress() -> None:
    worker = Scripted()
    async with loaded(worker, stall_seconds=0.2) as model:
        with model.transcribe("me", Decoding()) as job:
            await job.feed(b"", last=True)
            begun = time.monotonic()
            while time.monotonic() - begun < 0.6:
                worker.say(Stepped(Counters(1, 1, 1, 1)))
                await asyncio.sleep(POLL_SECONDS)
            assert not worker.killed


async def test_consumed_sound_is_not_owed() -> None:
    worker = Scripted()
    async with loaded(worker, stall_seconds=0.2) as model:
        with model.transcribe("me", Decoding()) as job:
            await job.feed(bytes(2 * SOUND_OWED))
            worker.say(Consumed(1, SOUND_OWED))
            await until(lambda: job.owed is None)


@pytest.mark.parametrize("whose", [1, 2])
async def test_sound_that_is_consumed_is_progress_of_its_request_alone(whose: int) -> None:
    """Silence is never decoded, and another request's progress must not hide that a decoding hangs."""
    worker = Scripted()
    async with loaded(worker, stall_seconds=0.2) as model:
        with model.transcribe("me", Decoding()) as job, model.transcribe("you", Decoding()):
            await job.feed(bytes(2 * SOUND_OWED), last=True)
            begun = time.monotonic()
            # Waits without limit for an expected kill, and three times the limit to see that no kill happens.
            while not worker.killed and (whose == 2 or time.monotonic() - begun < 0.6):
                worker.say(Consumed(whose, 16_000))
                await asyncio.sleep(POLL_SECONDS)
            assert worker.killed == (whose == 2)


# --- metrics


async def test_measured_values() -> None:
    worker = Scripted()
    gained_by = {
        "allm_audio_seconds_total": 9.0,
        "allm_speech_seconds_total": 6.5,
        "allm_generated_tokens_total": 21.0,
        "allm_batch_windows_sum": 2.0,
        "allm_time_to_first_segment_seconds_count": 1.0,
    }
    before = {name: metric(name) for name in gained_by}
    async with loaded(worker) as model:
        with model.transcribe("me", Decoding()) as job:
            worker.say(Stepped(Counters(3, 1, 4, 2)), Transcribed(1, [segment(0)]), Finished(1, "en", 9.0, 6.5, 21))
            while not isinstance(await job.next(), Finished):
                pass
        assert metric("allm_requests_running") == 1
        assert metric("allm_requests_waiting") == 4
        assert {name: metric(name) - value for name, value in before.items()} == gained_by
        worker.kill()
        await until(lambda: not model.alive)
        assert metric("allm_requests_running") == metric("allm_requests_waiting") == 0
