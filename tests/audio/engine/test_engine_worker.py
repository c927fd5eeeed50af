"""The worker process: loading, errors, concurrent requests, and a clean end on any input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from services.audio.engine.messages import (
    Decoding,
    EngineOptions,
    Finished,
    FromWorker,
    LanguageFound,
    Load,
    PartialText,
    Sound,
    Submit,
    Transcribed,
    WhisperReady,
)
from services.audio.engine.window import Samples
from services.worker.messages import Cancel, LoadFailed, RequestRefused
from services.worker.process import WorkerDied, WorkerProcess, worker_environ
from tests.audio.engine.recordings import samples_of, silence
from tests.speech import librivox
from tests.whisper_weights import base_ct2, tiny_en_ct2

LIMIT = 120  # seconds, for any wait


@asynccontextmanager
async def worker(path: Path, runtime: str = "faster_whisper") -> AsyncIterator[WorkerProcess]:
    environ = {**worker_environ(2)}
    process = await WorkerProcess.start("services.audio.engine", FromWorker, "whisper", environ)
    try:
        process.send(Load(runtime, EngineOptions(model_id="whisper", path=str(path), threads=2, gpu=False)))
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


def pcm(samples: Samples) -> bytes:
    return np.round(samples * 32767).astype("<i2").tobytes()


def text(heard: list, request: int) -> str:
    reported = [message for message in heard if isinstance(message, Transcribed) and message.request == request]
    return "".join(segment.text for message in reported for segment in message.segments)


async def test_worker_serves_many_requests_and_survives_any_input() -> None:
    async with worker(tiny_en_ct2()) as process:
        ready = (await until(process, WhisperReady))[-1]
        assert (ready.languages, ready.multilingual) == (["en"], False)
        sound = pcm(samples_of(librivox()[4]))
        process.send(Sound(99, b"for nobody"))
        process.send(Submit(1, "a", Decoding(language="fr")))
        process.send(Submit(2, "a", Decoding(task="translate")))
        process.send(Submit(3, "a", Decoding()))
        process.send(Sound(3, sound[:30001]))
        process.send(Sound(3, sound[30001:], last=True))
        process.send(Sound(3, b"after the end"))
        process.send(Submit(4, "b", Decoding()))
        process.send(Sound(4, pcm(silence(3)) + b"x", last=True))
        process.send(Submit(5, "b", Decoding(vad=None)))
        process.send(Sound(5, sound))
        process.send(Cancel(5))
        process.send(Submit(6, "c", Decoding()))
        process.send(Sound(6, b"", last=True))
        heard = await until(process, Finished, 3)
    refused = [message for message in heard if isinstance(message, RequestRefused)]
    assert {(one.request, one.param) for one in refused} == {(1, "language"), (2, "model")}
    assert {message.request for message in heard if isinstance(message, Finished)} == {3, 4, 6}
    assert "amiable" in text(heard, 3)
    assert text(heard, 4) == text(heard, 5) == text(heard, 6) == ""


async def test_live_speech_has_partials_before_its_segments() -> None:
    async with worker(tiny_en_ct2()) as process:
        await until(process, WhisperReady)
        sound = samples_of(librivox()[0])
        process.send(Submit(1, "a", Decoding(live=True)))
        heard: list = []
        for at in range(0, 5 * 16000, 8000):
            process.send(Sound(1, pcm(sound[at : at + 8000])))
        heard += await until(process, PartialText)
        assert not [message for message in heard if isinstance(message, Transcribed)]
        assert heard[-1].text.strip()
        process.send(Sound(1, pcm(sound[5 * 16000 :]), last=True))
        heard += await until(process, Finished)
    assert "leisure" in text(heard, 1)


@pytest.mark.slow
async def test_a_multilingual_model_finds_the_language() -> None:
    async with worker(base_ct2()) as process:
        ready = (await until(process, WhisperReady))[-1]
        assert ready.multilingual
        assert {"en", "de", "zh"} <= set(ready.languages)
        process.send(Submit(1, "a", Decoding()))
        process.send(Sound(1, pcm(samples_of(librivox()[3])), last=True))
        heard = await until(process, Finished)
    detected = [message for message in heard if isinstance(message, LanguageFound)]
    assert [one.language for one in detected] == ["en"]
    assert detected[0].probability > 0.5


@pytest.mark.parametrize(("runtime", "code"), [("faster_whisper", "MODEL_INVALID"), ("julius", "UNSUPPORTED")])
async def test_unloadable_model_is_reported(tmp_path: Path, runtime: str, code: str) -> None:
    (tmp_path / "model.bin").write_bytes(b"nothing of a model")
    async with worker(tmp_path, runtime) as process:
        failed = (await until(process, LoadFailed))[-1]
        assert failed.code == code


async def test_a_worker_ends_with_its_service() -> None:
    async with worker(tiny_en_ct2()) as process:
        await until(process, WhisperReady)
        process._channel.close()
        with pytest.raises(WorkerDied):
            async with asyncio.timeout(LIMIT):
                while True:
                    await process.receive()
