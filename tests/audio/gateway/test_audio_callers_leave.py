"""Callers of the audio service who hang up or reach their deadline: the service stops computing for them."""

from __future__ import annotations

import io
import wave
from contextlib import ExitStack

import pytest

from tests.runtime_counters import Runtime, answer, asked
from tests.speech import librivox
from tests.stack import SPEECH_MODEL, Stack

PATH = "/v1/audio/transcriptions"
BOUNDARY = "a-boundary"
KIND = f"multipart/form-data; boundary={BOUNDARY}"
SECONDS = 700  # of speech: takes far longer than the tests
FEW_STEPS = 20  # steps until a worker learns of a hang-up that its service knows of; the whole takes some hundred


@pytest.fixture
def whisper(stack: Stack) -> Runtime:
    """Returns the model, loaded and idle."""
    runtime = Runtime(stack, "audio", SPEECH_MODEL)
    with asked(stack, PATH, upload(librivox()[0].path.read_bytes()), KIND) as connection:
        status, reported = answer(connection)
    assert status == 200, reported
    runtime.wait_until(lambda: runtime.idle)
    return runtime


def long_speech() -> bytes:
    """Returns a WAV file of many minutes."""
    with wave.open(str(librivox()[0].path)) as clip:
        format = clip.getparams()
        frames = clip.readframes(clip.getnframes())
    times = SECONDS * format.framerate // format.nframes
    file = io.BytesIO()
    with wave.open(file, "wb") as long:
        long.setparams(format)
        long.writeframes(frames * times)
    return file.getvalue()


def upload(sound: bytes, **fields: str) -> bytes:
    """Builds the form of a request."""
    parts = {"model": SPEECH_MODEL, **fields}
    texts = "".join(
        f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in parts.items()
    )
    file = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    return texts.encode() + file.encode() + sound + f"\r\n--{BOUNDARY}--\r\n".encode()


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["true", "false"])
def test_a_caller_who_hangs_up_frees_the_worker_within_a_step(whisper: Runtime, stream: str) -> None:
    with ExitStack() as standing:  # noqa: SIM117 (the one outlasts the other)
        with asked(whisper.stack, PATH, upload(long_speech(), stream=stream), KIND):
            whisper.wait_until(lambda: whisper.running == 1)
            standing.enter_context(whisper.standing_still())
    steps = whisper.steps
    whisper.wait_until(lambda: whisper.idle)
    assert whisper.steps - steps <= FEW_STEPS


@pytest.mark.slow
def test_expired_caller_gets_an_error_and_frees_the_worker(whisper: Runtime) -> None:
    headers = {"x-request-timeout": "3"}
    with asked(whisper.stack, PATH, upload(long_speech()), KIND, headers) as connection:
        status, reported = answer(connection)
    assert (status, reported["error"]["code"]) == (504, "timeout")
    assert "x-request-timeout" in reported["error"]["message"]
    whisper.wait_until(lambda: whisper.idle)


def test_a_header_that_is_no_time_is_refused_by_name(stack: Stack) -> None:
    with asked(stack, PATH, upload(b""), KIND, {"x-request-timeout": "soon"}) as connection:
        status, reported = answer(connection)
    assert (status, reported["error"]["param"]) == (400, "x-request-timeout")
