"""Broken, oversized and aborted uploads through the real gateway: each gets its own error and leaves nothing behind."""

from __future__ import annotations

import socket
import threading
import time
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import openai
import psutil
import pytest

from tests.audio.gateway.recoding import RATE, encoded, samples_of
from tests.audio.sound.sound_files import wav
from tests.audio.transcribing import MAY_DIFFER, word_errors
from tests.speech import Clip, librivox, prompts
from tests.stack import POLL_SECONDS, SPEECH_MODEL, Stack

PATIENCE_SECONDS = 60
MIB = 1024 * 1024
LIMIT = 25 * MIB  # ALLM_MAX_AUDIO_BYTES
FAST: dict[str, Any] = {"extra_body": {"beam_size": 1}}
WATCH_SECONDS = 0.25  # between two measurements, for each of which the kernel counts pages
SPARED = 10  # normal variation in files and processes (spare decoders). Leak tests use twice as many clients
TEXT = b"This is a letter, and no sound at all. " * 100


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stack.base_url, api_key="unused", max_retries=0, timeout=170) as client:
        yield client


@pytest.fixture
def clip() -> Clip:
    return librivox()[0]


@dataclass
class Service:
    """The audio service with its decoders and its worker, as the operating system sees them."""

    stack: Stack

    def processes(self) -> list[psutil.Process]:
        service = psutil.Process(self.stack.note["children"]["audio"])
        return [service, *service.children(recursive=True)]

    def memory(self) -> int:
        """Returns the bytes that are private to these processes, in total."""
        found = 0
        for process in self.processes():
            try:
                found += process.memory_full_info().uss
            except psutil.NoSuchProcess:  # a decoder that has just ended
                continue
        return found

    def open_files(self) -> int:
        """Counts the open files of the service process."""
        return self.processes()[0].num_fds()

    def uploads(self) -> list[str]:
        """Lists the files uploaded by callers."""
        return [entry.name for entry in (self.stack.home / "uploads").iterdir()]

    def wait(self, what: str, limit: Any) -> None:
        """Waits until a measurement does not exceed the limit."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := getattr(self, what)()) > limit:
            assert time.monotonic() < deadline, (what, found, limit)
            time.sleep(POLL_SECONDS)


class Watch(threading.Thread):
    """Samples the service's memory while the block runs."""

    def __init__(self, service: Service) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self._service = service
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(WATCH_SECONDS):
            self.most = max(self.most, self._service.memory())

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


@pytest.fixture
def service(stack: Stack, client: openai.OpenAI, clip: Clip) -> Service:
    """Returns the service with its model loaded, after a first answer."""
    transcribe(client, clip.path)
    service = Service(stack)
    service.wait("uploads", [])
    return service


def transcribe(client: openai.OpenAI, file: Any) -> Any:
    return client.audio.transcriptions.create(model=SPEECH_MODEL, file=file, response_format="verbose_json", **FAST)


def tone(seconds: float, rate: int) -> bytes:
    at = np.arange(int(rate * seconds)) / rate
    return (np.sin(2 * np.pi * 440 * at) * 8000).astype("<i2").tobytes()


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (("nothing.wav", b""), "empty"),
        (("letter.mp3", TEXT), "in an unsupported format"),
        (("header.wav", wav(b"")[:20]), ""),
        (("crowd.wav", wav(tone(0.5, RATE) * 200, channels=200)), "200"),
        (("noise.mp4", bytes(range(256)) * 400), ""),
    ],
    ids=["empty", "text", "cut-header", "200-channels", "noise"],
)
def test_file_without_sound_is_reported(
    service: Service, client: openai.OpenAI, clip: Clip, file: tuple[str, bytes], says: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        transcribe(client, file)
    assert (caught.value.param, caught.value.type) == ("file", "invalid_request_error")
    assert says in caught.value.message
    assert word_errors(transcribe(client, clip.path).text, clip.transcript) < MAY_DIFFER, "the next one is served"
    service.wait("uploads", [])


def test_a_truncated_mp3_is_transcribed_as_far_as_it_goes(client: openai.OpenAI, clip: Clip) -> None:
    whole = encoded("mp3", [samples_of(clip.path)])
    found = transcribe(client, ("half.mp3", whole[: len(whole) // 2]))
    assert abs(found.duration - clip.seconds / 2) < 0.5
    assert 0 < len(found.text.split()) < len(clip.transcript.split())


@pytest.mark.slow  # needs a recording from a Debian package
def test_the_telephones_8_khz(client: openai.OpenAI) -> None:
    clip = prompts()[0]
    with wave.open(str(clip.path)) as file:
        assert (file.getframerate(), file.getnchannels()) == (8000, 1)
    found = transcribe(client, clip.path)
    assert abs(found.duration - clip.seconds) < 0.01
    assert word_errors(found.text, clip.transcript) < MAY_DIFFER


def test_over_the_limit_is_413_with_both_numbers_known(service: Service, client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        transcribe(client, ("long.wav", wav(b"\0\0" * (LIMIT // 2 + 1))))
    error = caught.value
    assert (error.status_code, error.code, error.param) == (413, "request_too_large", "file")
    assert str(LIMIT) in error.message
    assert "ALLM_MAX_AUDIO_BYTES" in error.message
    service.wait("uploads", [])


def test_just_below_the_limit_is_taken(client: openai.OpenAI) -> None:
    """13 minutes of silence: the whole file arrives, and the transcript is empty."""
    silence = wav(b"\0\0" * ((LIMIT - 44) // 2))
    found = transcribe(client, ("limit.wav", silence))
    assert (len(silence), found.text) == (LIMIT, "")
    assert abs(found.duration - (LIMIT - 44) / 2 / RATE) < 0.01


def test_clients_that_hang_up_in_the_middle_leave_nothing(
    stack: Stack, service: Service, client: openai.OpenAI, clip: Clip
) -> None:
    files, processes = service.open_files(), len(service.processes())
    for _ in range(2 * SPARED):
        with half_sent(stack, clip):
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not service.uploads():
                assert time.monotonic() < deadline
                time.sleep(POLL_SECONDS)
    service.wait("uploads", [])
    service.wait("open_files", files + SPARED)
    assert len(service.processes()) <= processes + SPARED
    assert word_errors(transcribe(client, clip.path).text, clip.transcript) < MAY_DIFFER


@contextmanager
def half_sent(stack: Stack, clip: Clip) -> Iterator[None]:
    """Sends half of a 10 MiB upload; leaving the block breaks the connection."""
    head = f'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\n{SPEECH_MODEL}\r\n--b\r\n'
    head += 'content-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    with socket.create_connection(("127.0.0.1", stack.port), PATIENCE_SECONDS) as connection:
        connection.sendall(
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: multipart/form-data; boundary=b\r\ncontent-length: 10485760\r\n\r\n"
        )
        connection.sendall(head.encode() + clip.path.read_bytes()[:44] + bytes(5 * MIB))
        yield


@pytest.mark.slow
def test_an_hour_is_transcribed_in_bounded_memory(service: Service, client: openai.OpenAI, clip: Clip) -> None:
    """One sentence every ten minutes, with silence between: 230 MB as the model's samples, but a small file."""
    speech = samples_of(clip.path)
    period = np.concatenate([speech, np.zeros(600 * RATE - len(speech), np.int16)])
    file = ("hour.flac", encoded("flac", [period] * 6))
    before, files = service.memory(), service.open_files()
    with Watch(service) as watch:
        found = transcribe(client.with_options(timeout=580), file)
    assert abs(found.duration - 3600) < 1
    assert all(0 <= segment.start <= segment.end <= 3600 for segment in found.segments)
    starts = [segment.start for segment in found.segments]
    for number in range(6):  # every sentence is found, at its time
        said = " ".join(s.text for s in found.segments if 600 * number - 1 < s.start < 600 * number + 60)
        assert word_errors(said, clip.transcript) < MAY_DIFFER, (number, starts)
    assert watch.most - before < 150 * MIB
    service.wait("memory", before + 100 * MIB)  # less than half of the samples
    service.wait("open_files", files + 2)
    service.wait("uploads", [])
