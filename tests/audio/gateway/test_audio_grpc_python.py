"""The typed audio API through the real gateway, with gRPC for Python."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from allm.audio.v1 import transcription_service_pb2 as pb
from allm.audio.v1 import transcription_service_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.audio.gateway.recoding import RATE, samples_of
from tests.audio.transcribing import MAY_DIFFER, word_errors
from tests.speech import Clip, librivox
from tests.stack import MODEL, SPEECH_MODEL, Stack

SECONDS = 120
SERVICE = "allm.audio.v1.TranscriptionService"


@pytest.fixture
def channel(stack: Stack) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(stack.grpc_address) as channel:
        yield channel


@pytest.fixture
def audio(channel: grpc.Channel) -> Any:
    return transcription_service_pb2_grpc.TranscriptionServiceStub(channel)


@pytest.fixture
def clip() -> Clip:
    return librivox()[0]


def config(**fields: Any) -> pb.TranscriptionConfig:
    return pb.TranscriptionConfig(**{"model": SPEECH_MODEL, "beam_size": 1, **fields})


def pieces(data: bytes) -> Iterator[bytes]:
    """Yields the audio in pieces of a tenth of a second."""
    for start in range(0, len(data), RATE // 5):
        yield data[start : start + RATE // 5]


def test_reflection_lists_the_audio_service_on_the_same_port(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert SERVICE in database.get_services()
    file = database.FindFileContainingSymbol(SERVICE)
    (service,) = [service for service in file.service if service.name == "TranscriptionService"]
    assert {method.name for method in service.method} == {"Transcribe", "StreamTranscribe", "Translate"}


def test_a_file_with_words(audio: Any, clip: Clip) -> None:
    requests = [pb.TranscribeRequest(config=config(words=True))]
    requests += [pb.TranscribeRequest(audio=piece) for piece in pieces(clip.path.read_bytes())]
    reply = audio.Transcribe(iter(requests), timeout=SECONDS)
    assert reply.model == SPEECH_MODEL
    assert word_errors(reply.transcript.text, clip.transcript) < MAY_DIFFER
    assert abs(reply.transcript.duration - clip.seconds) < 0.01
    words = [word for segment in reply.transcript.segments for word in segment.words]
    assert "".join(word.word for word in words).strip() == reply.transcript.text
    assert all(0 <= word.start <= word.end <= clip.seconds + 0.1 for word in words)


def test_a_stream_is_answered_while_it_is_spoken(audio: Any, clip: Clip) -> None:
    """The rest is sent only after text of the beginning has arrived."""
    samples = list(pieces(samples_of(clip.path).tobytes()))
    half = len(samples) // 2
    answers: list[pb.StreamTranscribeResponse] = []
    heard = threading.Event()

    def speak() -> Iterator[pb.StreamTranscribeRequest]:
        yield pb.StreamTranscribeRequest(config=config(raw={"sample_rate": RATE}))
        for piece in samples[:half]:
            yield pb.StreamTranscribeRequest(audio=piece)
        heard.wait(SECONDS)
        for piece in samples[half:]:
            yield pb.StreamTranscribeRequest(audio=piece)

    for answer in audio.StreamTranscribe(speak(), timeout=SECONDS):
        answers.append(answer)
        if answer.partial.text or answer.segment.text:
            heard.set()
    kinds = [answer.WhichOneof("event") for answer in answers]
    assert (kinds[0], kinds[-1]) == ("started", "finished")
    assert kinds.count("language") == 1
    text = "".join(answer.segment.text for answer in answers)
    assert word_errors(text, clip.transcript) < MAY_DIFFER
    assert abs(answers[-1].finished.duration - clip.seconds) < 0.01


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("nobody", grpc.StatusCode.NOT_FOUND, "nobody"),
        (MODEL, grpc.StatusCode.INVALID_ARGUMENT, "is for chat"),
        ("", grpc.StatusCode.INVALID_ARGUMENT, "model"),
    ],
)
def test_errors_are_statuses(audio: Any, name: str, code: grpc.StatusCode, says: str) -> None:
    requests = [pb.TranscribeRequest(config=config(model=name)), pb.TranscribeRequest(audio=b"sound")]
    with pytest.raises(grpc.RpcError) as caught:
        audio.Transcribe(iter(requests), timeout=SECONDS)
    call: Any = caught.value
    assert call.code() is code
    assert says in call.details()


def test_an_english_model_does_not_translate(audio: Any, clip: Clip) -> None:
    opening = pb.TranslateRequest(config=pb.TranslationConfig(model=SPEECH_MODEL))
    with pytest.raises(grpc.RpcError) as caught:
        audio.Translate(iter([opening, pb.TranslateRequest(audio=clip.path.read_bytes())]), timeout=SECONDS)
    call: Any = caught.value
    assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "translation" in call.details()
