"""The typed audio API on a real gRPC server, over a core with scripted segments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.audio.v1 import transcription_pb2, transcription_service_pb2, transcription_service_pb2_grpc
from google.rpc import error_details_pb2, status_pb2

from services.audio.engine.messages import Finished, PartialText, Segment, VadOptions
from services.audio.sound.source import RawSound
from services.audio.transcription import Event
from services.errors import InvalidRequest
from tests.audio.api.scripted_transcriptions import (
    LIMIT_BYTES,
    MODEL,
    SEGMENTS,
    TEXT,
    ScriptedTranscriptions,
    scripted_events,
    served,
)
from tests.case import case

PATIENCE_SECONDS = 60
SOUND = b"the sound"
Config = transcription_service_pb2.TranscriptionConfig
Request = transcription_service_pb2.TranscribeRequest
StreamRequest = transcription_service_pb2.StreamTranscribeRequest
Raw = transcription_pb2.RawAudio
Vad = transcription_pb2.VadParameters
S16LE = transcription_pb2.SAMPLE_ENCODING_S16LE


@pytest.fixture
def core() -> ScriptedTranscriptions:
    return ScriptedTranscriptions()


@pytest.fixture
async def stub(
    core: ScriptedTranscriptions, tmp_path: Path
) -> AsyncIterator[transcription_service_pb2_grpc.TranscriptionServiceAsyncStub]:
    async with served(core, tmp_path) as channel:
        yield transcription_service_pb2_grpc.TranscriptionServiceStub(channel)
    left = list(tmp_path.iterdir())  # noqa: ASYNC240
    assert not left


def requests(config: Config | None = None, *audio: bytes) -> list[Request]:
    """Yields a configuration, then the audio in pieces."""
    return [Request(config=config or Config(model=MODEL)), *[Request(audio=each) for each in audio]]


def reason(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    """Returns the error's allm code and the parameter at fault."""
    details = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    info = error_details_pb2.ErrorInfo()
    status_pb2.Status.FromString(details).details[0].Unpack(info)
    return info.reason, info.metadata["param"]


async def test_a_whole_transcript(stub: Any, core: ScriptedTranscriptions) -> None:
    config = Config(model=MODEL, language="German", prompt="Names.", words=True, logprobs=True, temperature=0.5)
    answer = await stub.Transcribe(requests(config, SOUND[:4], b"", SOUND[4:]))
    assert answer.model == MODEL
    found = answer.transcript
    assert (found.text, found.language, found.language_probability, found.tokens) == (TEXT, "en", 0.75, 10)
    assert (found.duration, found.speech_duration) == (8.47, 6.5)
    first, wanted = found.segments[0], SEGMENTS[0]
    assert (first.index, first.start, first.end, first.text) == (0, 0.0, 3.32, wanted.text)
    assert list(first.tokens) == wanted.tokens
    assert [word.word for word in first.words] == [" The", " beach", " was", " a", " popular", " spot."]
    assert first.words[1].start == pytest.approx(3.32 / 6)
    assert [token.token for token in first.logprobs][:2] == [b" The", b" beach"]
    assert (first.avg_logprob, first.compression_ratio) == (-0.25, 1.5)
    (request,) = core.requests
    assert (request.task, request.language, request.prompt, request.temperature) == ("transcribe", "de", "Names.", 0.5)
    assert (request.words, request.logprobs, request.live, request.vad) == (True, True, False, VadOptions())
    assert core.sounds == [SOUND]
    assert core.raw == [None]


async def test_unset_values_are_left_to_the_server(stub: Any, core: ScriptedTranscriptions) -> None:
    await stub.Transcribe(requests(None, SOUND))
    (request,) = core.requests
    assert (request.temperature, request.beam_size, request.language) == (None, None, "")


async def test_translation(stub: Any, core: ScriptedTranscriptions) -> None:
    core.events = scripted_events(language="de")
    config = transcription_service_pb2.TranslationConfig(model=MODEL, vad_filter=False, beam_size=2)
    kind = transcription_service_pb2.TranslateRequest
    answer = await stub.Translate([kind(config=config), kind(audio=SOUND)])
    assert (answer.model, answer.transcript.text, answer.transcript.language) == (MODEL, TEXT, "de")
    (request,) = core.requests
    assert (request.task, request.vad, request.beam_size, request.words) == ("translate", None, 2, False)


async def test_raw_sound(stub: Any, core: ScriptedTranscriptions) -> None:
    await stub.Transcribe(requests(Config(model=MODEL, raw=Raw(sample_rate=8000)), SOUND))
    await stub.Transcribe(requests(Config(model=MODEL, raw=Raw(encoding=S16LE, sample_rate=8000)), SOUND))
    encoding = transcription_pb2.SAMPLE_ENCODING_F32LE
    raw = Raw(encoding=encoding, sample_rate=48_000, channels=2)
    await stub.Transcribe(requests(Config(model=MODEL, raw=raw), SOUND))
    assert core.raw == [RawSound(8000, 1, "s16le"), RawSound(8000, 1, "s16le"), RawSound(48_000, 2, "f32le")]


async def test_speech_detection(stub: Any, core: ScriptedTranscriptions) -> None:
    await stub.Transcribe(requests(Config(model=MODEL, vad=Vad(threshold=0.25, padding_ms=0)), SOUND))
    await stub.Transcribe(requests(Config(model=MODEL, vad=Vad(silence_duration_ms=900)), SOUND))
    first, second = core.requests
    assert first.vad == VadOptions(threshold=0.25, padding_ms=0)
    assert second.vad == VadOptions(silence_ms=900)


async def test_refusals_name_the_field(stub: Any, core: ScriptedTranscriptions) -> None:
    for config, param in [
        (Config(), "model"),
        (Config(model=MODEL, language="klingon"), "language"),
        (Config(model=MODEL, prompt="x" * 70_000), "prompt"),
        (Config(model=MODEL, temperature=1.5), "temperature"),
        (Config(model=MODEL, temperature=float("nan")), "temperature"),
        (Config(model=MODEL, beam_size=11), "beam_size"),
        (Config(model=MODEL, vad=Vad(threshold=-1)), "vad.threshold"),
        (Config(model=MODEL, vad=Vad(silence_duration_ms=40_000)), "vad.silence_duration_ms"),
        (Config(model=MODEL, vad=Vad(padding_ms=-1)), "vad.padding_ms"),
        (Config(model=MODEL, vad_filter=False, vad=Vad(threshold=0.5)), "vad"),
        (Config(model=MODEL, raw=Raw(sample_rate=8000, encoding=9)), "raw.encoding"),
        (Config(model=MODEL, raw=Raw(encoding=S16LE)), "raw.sample_rate"),
        (Config(model=MODEL, raw=Raw(encoding=S16LE, sample_rate=8000, channels=200)), "raw.channels"),
    ]:
        with case(config=config, param=param):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Transcribe(requests(config, SOUND))
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert reason(caught.value) == ("INVALID_REQUEST", param)
            assert param in (caught.value.details() or "")
            assert not core.requests


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ([], "first message must have 'config'"),
        ([Request()], "first message must have 'config'"),
        ([Request(audio=SOUND)], "first message must have 'config'"),
        (requests(), "No message has 'audio'"),
        (requests(None, b""), "No message has 'audio'"),
        ([*requests(None, SOUND), *requests()], "Only the first message has 'config'"),
        ([*requests(None, SOUND), Request()], "all others must have 'audio'"),
    ],
)
async def test_streams_that_are_not_as_they_should_be(stub: Any, sent: list[Request], says: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Transcribe(sent)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert says in (caught.value.details() or "")
    live = [StreamRequest.FromString(each.SerializeToString()) for each in sent]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stub.StreamTranscribe(iter(live)):
            pass
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert says in (caught.value.details() or "")


async def test_unknown_model_is_reported_before_the_audio_arrives(stub: Any) -> None:
    async def forever() -> AsyncIterator[Request]:
        yield Request(config=Config(model="whisper-17"))
        await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Transcribe(forever())
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert reason(caught.value)[0] == "MODEL_NOT_FOUND"


async def test_a_file_over_the_limit(stub: Any) -> None:
    await stub.Transcribe(requests(None, b"x" * LIMIT_BYTES))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Transcribe(requests(None, b"x" * LIMIT_BYTES, b"y"))
    assert caught.value.code() == grpc.StatusCode.OUT_OF_RANGE
    assert reason(caught.value)[1] == "audio"


async def test_field_file_of_the_core_is_named_audio(stub: Any, core: ScriptedTranscriptions) -> None:
    async def fail(event: Event) -> None:
        raise InvalidRequest("this is no audio", param="file")

    core.between = fail
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Transcribe(requests(None, SOUND))
    assert reason(caught.value) == ("INVALID_REQUEST", "audio")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(stub.StreamTranscribe(live(asyncio.Queue()))))
    assert reason(caught.value) == ("INVALID_REQUEST", "audio")


# --- Live audio


async def live(said: asyncio.Queue[bytes | None], config: Config | None = None) -> AsyncIterator[StreamRequest]:
    """Yields a configuration immediately, then audio from the queue; None ends the feed."""
    yield StreamRequest(config=config or Config(model=MODEL))
    while (audio := await said.get()) is not None:
        yield StreamRequest(audio=audio)


async def test_answers_come_while_audio_still_goes(stub: Any, core: ScriptedTranscriptions) -> None:
    *before, finished = scripted_events()
    core.events = [*before[:2], PartialText(1, "The beach", 0.0, 1.5), *before[2:], finished]
    said: asyncio.Queue[bytes | None] = asyncio.Queue()
    said.put_nowait(b"first")
    answers = aiter(stub.StreamTranscribe(live(said, Config(model=MODEL, words=True))))
    async with asyncio.timeout(PATIENCE_SECONDS):
        events = [await anext(answers) for _ in range(5)]
        said.put_nowait(b" second")
        said.put_nowait(None)
        events += [event async for event in answers]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["started", "language", "partial", "segment", "segment", "finished"]
    assert events[0].started.model == MODEL
    assert (events[1].language.language, events[1].language.probability) == ("en", 0.75)
    partial = events[2].partial
    assert (partial.text, partial.start, partial.end) == ("The beach", 0.0, 1.5)
    assert [event.segment.index for event in events[3:5]] == [0, 1]
    assert len(events[3].segment.words) == 6
    last = events[5].finished
    assert (last.language, last.duration, last.speech_duration, last.tokens) == ("en", 8.47, 6.5, 10)
    assert core.sounds == [b"first second"]
    assert (core.requests[0].live, core.requests[0].vad) == (True, VadOptions())


async def test_live_audio_may_be_longer_than_a_file(stub: Any, core: ScriptedTranscriptions) -> None:
    pieces = [b"x" * 50_000] * 20
    sent = iter([StreamRequest(config=Config(model=MODEL)), *[StreamRequest(audio=piece) for piece in pieces]])
    events = [event async for event in stub.StreamTranscribe(sent)]
    assert events[-1].WhichOneof("event") == "finished"
    assert core.sounds == [b"".join(pieces)]


async def test_a_caller_that_is_too_fast_is_held_back(stub: Any, core: ScriptedTranscriptions) -> None:
    job = asyncio.Event()
    sent = 0

    async def wait(event: Event) -> None:
        if isinstance(event, Segment):
            await job.wait()

    async def fast() -> AsyncIterator[StreamRequest]:
        nonlocal sent
        yield StreamRequest(config=Config(model=MODEL))
        for _ in range(100):
            yield StreamRequest(audio=b"x" * 1_000_000)
            sent += 1

    core.between = wait
    answers = aiter(stub.StreamTranscribe(fast()))
    async with asyncio.timeout(3 * PATIENCE_SECONDS):
        await anext(answers)
        held = await settled(lambda: sent)
        assert held < 50
        job.set()
        assert [event async for event in answers][-1].WhichOneof("event") == "finished"
    assert sent == 100


async def settled(value: Callable[[], int]) -> int:
    """Returns the value once it has been stable for half a second."""
    before, same = value(), 0
    while same < 50:
        await asyncio.sleep(0.01)
        now = value()
        before, same = now, same + 1 if now == before else 0
    return before


async def test_live_needs_pauses(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(stub.StreamTranscribe(live(asyncio.Queue(), Config(model=MODEL, vad_filter=False)))))
    assert reason(caught.value) == ("INVALID_REQUEST", "vad_filter")


async def test_disconnect_ends_it(stub: Any, core: ScriptedTranscriptions) -> None:
    call = stub.StreamTranscribe(live(asyncio.Queue()))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await anext(aiter(call))
        call.cancel()
        await core.left.wait()


async def test_the_callers_deadline_ends_it(stub: Any, core: ScriptedTranscriptions) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.StreamTranscribe(live(asyncio.Queue()), timeout=0.3):
                pass
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await core.left.wait()


async def test_an_error_of_the_core_ends_the_listening(stub: Any, core: ScriptedTranscriptions) -> None:
    async def fail(event: Event) -> None:
        if isinstance(event, Segment):
            raise InvalidRequest("the sound breaks off", param="file")

    core.between = fail
    answers = aiter(stub.StreamTranscribe(live(asyncio.Queue())))
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await anext(answers)).WhichOneof("event") == "started"
        assert (await anext(answers)).WhichOneof("event") == "language"
        with pytest.raises(grpc.aio.AioRpcError, match="breaks off"):
            await anext(answers)


async def test_events_after_a_second_config_are_not_sent(stub: Any, core: ScriptedTranscriptions) -> None:
    said: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def twice() -> AsyncIterator[StreamRequest]:
        yield StreamRequest(config=Config(model=MODEL))
        yield StreamRequest(audio=SOUND)
        await said.get()
        yield StreamRequest(config=Config(model=MODEL))

    answers = aiter(stub.StreamTranscribe(twice()))
    kinds = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(grpc.aio.AioRpcError, match="Only the first message"):
            async for event in answers:
                kinds.append(event.WhichOneof("event"))
                said.put_nowait(None)
        await core.left.wait()
    assert "finished" not in kinds


async def test_silence(stub: Any, core: ScriptedTranscriptions) -> None:
    core.events = scripted_events(())
    answer = await stub.Transcribe(requests(None, SOUND))
    assert (answer.transcript.text, answer.transcript.language, len(answer.transcript.segments)) == ("", "", 0)
    assert isinstance(core.events[-1], Finished)
