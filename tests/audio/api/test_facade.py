"""The audio REST facade through the official SDK, over a core with scripted segments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from allm.openai.v1 import audio_service_pb2_grpc
from google.api import httpbody_pb2
from openai import AsyncOpenAI
from openai.types.audio import TranscriptionStreamEvent
from pydantic import TypeAdapter

from services.audio.api import uploads
from services.audio.engine.messages import Finished, Segment, VadOptions
from services.audio.transcription import Event
from services.errors import InvalidRequest
from services.rest.openai import multipart
from services.rest.openai.body import PIECE_BYTES
from services.rpc.call import IGNORED_HEADER, Call
from tests.audio.api.official_client import official_client
from tests.audio.api.scripted_transcriptions import (
    LIMIT_BYTES,
    MODEL,
    TEXT,
    ScriptedTranscriptions,
    scripted_events,
    segment,
    served,
)
from tests.case import case

SOUND = b"RIFF what the sound is made of"
FILE = ("speech.wav", SOUND, "audio/wav")
PATIENCE_SECONDS = 60
ANN, BOB = "ann", "bob"
EVENTS: TypeAdapter[Any] = TypeAdapter(TranscriptionStreamEvent)


def files(folder: Path) -> int:
    """Counts the uploads."""
    return len(list(folder.iterdir()))


async def until(condition: Callable[[], bool]) -> None:
    """Waits until the condition holds."""
    while not condition():  # noqa: ASYNC110 (a folder tells nobody)
        await asyncio.sleep(0.01)


@pytest.fixture
def core() -> ScriptedTranscriptions:
    return ScriptedTranscriptions()


@pytest.fixture
async def channel(core: ScriptedTranscriptions, tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    async with served(core, tmp_path) as channel:
        yield channel
    assert not files(tmp_path), "a file was left behind"


@pytest.fixture
async def client(channel: grpc.aio.Channel) -> AsyncIterator[AsyncOpenAI]:
    async with official_client(channel) as client:
        yield client


# --- Whole answers


async def test_json_is_the_default(client: AsyncOpenAI, core: ScriptedTranscriptions) -> None:
    answer = await client.audio.transcriptions.create(file=FILE, model=MODEL)
    assert answer.to_dict() == {"text": TEXT, "usage": {"type": "duration", "seconds": 9}}
    assert core.sounds == [SOUND]
    (request,) = core.requests
    assert (request.task, request.language, request.prompt, request.temperature) == ("transcribe", "", "", None)
    assert (request.vad, request.live, request.words, request.logprobs) == (VadOptions(), False, False, False)


async def test_all_parameters_reach_the_core(client: AsyncOpenAI, core: ScriptedTranscriptions) -> None:
    await client.audio.transcriptions.create(
        file=FILE,
        model=MODEL,
        language="de",
        prompt="Grüße, null",
        temperature=0.4,
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
        chunking_strategy={
            "type": "server_vad",
            "threshold": 0.25,
            "silence_duration_ms": 700,
            "prefix_padding_ms": 90,
        },
        extra_body={"beam_size": 3},
    )
    (request,) = core.requests
    assert (request.language, request.prompt, request.temperature) == ("de", "Grüße, null", 0.4)
    assert (request.words, request.logprobs, request.beam_size) == (True, False, 3)
    assert request.vad == VadOptions(threshold=0.25, silence_ms=700, padding_ms=90)


async def test_voice_activity_detection_can_be_switched_off(client: AsyncOpenAI, core: ScriptedTranscriptions) -> None:
    await client.audio.transcriptions.create(file=FILE, model=MODEL, extra_body={"vad_filter": False})
    await client.audio.transcriptions.create(file=FILE, model=MODEL, chunking_strategy="auto")
    assert [request.vad for request in core.requests] == [None, VadOptions()]


async def test_verbose_json(client: AsyncOpenAI) -> None:
    answer = await client.audio.transcriptions.create(file=FILE, model=MODEL, response_format="verbose_json")
    found = answer.to_dict()
    assert {key: value for key, value in found.items() if key != "segments"} == {
        "task": "transcribe",
        "language": "english",
        "duration": 8.47,
        "text": TEXT,
        "usage": {"type": "duration", "seconds": 9},
    }
    assert found["segments"][0] == {
        "id": 0,
        "seek": 0,
        "start": 0.0,
        "end": 3.32,
        "text": " The beach was a popular spot.",
        "tokens": [50364, 0, 1, 2, 3, 4, 5, 50464],
        "temperature": 0.0,
        "avg_logprob": -0.25,
        "compression_ratio": 1.5,
        "no_speech_prob": 0.01,
    }
    assert type(answer).model_validate(found, strict=False) == answer


async def test_words_replace_or_accompany_segments(client: AsyncOpenAI) -> None:
    only = await client.audio.transcriptions.create(
        file=FILE, model=MODEL, response_format="verbose_json", timestamp_granularities=["word"]
    )
    assert only.segments is None
    assert only.words is not None
    assert [word.word for word in only.words] == TEXT.split()
    assert only.words[0].to_dict() == {"word": "The", "start": 0.0, "end": 0.553}
    both = await client.audio.transcriptions.create(
        file=FILE, model=MODEL, response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert both.words == only.words
    assert both.segments is not None


async def test_text(client: AsyncOpenAI) -> None:
    assert await client.audio.transcriptions.create(file=FILE, model=MODEL, response_format="text") == f"{TEXT}\n"


async def test_subtitles(client: AsyncOpenAI) -> None:
    assert await client.audio.transcriptions.create(file=FILE, model=MODEL, response_format="srt") == (
        "1\n00:00:00,000 --> 00:00:03,320\nThe beach was a popular spot.\n\n"
        "2\n00:00:03,320 --> 00:00:08,000\nPeople swam, and ran.\n\n"
    )
    assert await client.audio.transcriptions.create(file=FILE, model=MODEL, response_format="vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:03.320\nThe beach was a popular spot.\n\n"
        "00:00:03.320 --> 00:00:08.000\nPeople swam, and ran.\n\n"
    )


async def test_logprobs(client: AsyncOpenAI, core: ScriptedTranscriptions) -> None:
    answer = await client.audio.transcriptions.create(file=FILE, model=MODEL, include=["logprobs"])
    assert answer.logprobs is not None
    assert [token.token for token in answer.logprobs] == [f" {word}" for word in TEXT.split()]
    assert answer.logprobs[0].to_dict() == {"token": " The", "logprob": -0.125, "bytes": list(b" The")}
    assert core.requests[0].logprobs


async def test_silence(client: AsyncOpenAI, core: ScriptedTranscriptions) -> None:
    core.events = scripted_events(())
    assert (await client.audio.transcriptions.create(file=FILE, model=MODEL)).text == ""
    verbose = await client.audio.transcriptions.create(file=FILE, model=MODEL, response_format="verbose_json")
    assert (verbose.text, verbose.segments, verbose.language, verbose.duration) == ("", [], "", 8.47)
    assert await client.audio.transcriptions.create(file=FILE, model=MODEL, response_format="srt") == ""
    assert await client.audio.transcriptions.create(file=FILE, model=MODEL, response_format="vtt") == "WEBVTT\n\n"


async def test_a_long_answer_comes_whole(client: AsyncOpenAI, core: ScriptedTranscriptions) -> None:
    core.events = scripted_events([segment(at, at, at + 1, f" number {at}" * 60) for at in range(600)])
    answer = await client.audio.transcriptions.create(file=FILE, model=MODEL, response_format="verbose_json")
    assert len(answer.to_json(indent=None)) > 2 * PIECE_BYTES
    assert answer.segments is not None
    assert [each.id for each in answer.segments] == list(range(600))


# --- Translations: OpenAI has deprecated them, and its SDK warns about them

TRANSLATIONS = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")


@TRANSLATIONS
async def test_translations(client: AsyncOpenAI, core: ScriptedTranscriptions) -> None:
    core.events = scripted_events(language="de")
    answer = await client.audio.translations.create(file=FILE, model=MODEL, prompt="Names.", temperature=0)
    assert answer.to_dict() == {"text": TEXT}
    request = core.requests[0]
    assert (request.task, request.prompt, request.temperature) == ("translate", "Names.", 0.0)
    verbose = await client.audio.translations.create(file=FILE, model=MODEL, response_format="verbose_json")
    found = verbose.to_dict()
    assert (found["task"], found["language"], found["duration"]) == ("translate", "english", 8.47)
    assert len(found["segments"]) == 2
    assert "usage" not in found
    srt = await client.audio.translations.create(file=FILE, model=MODEL, response_format="srt")
    assert str(srt).startswith("1\n00:00:00,000 --> ")


@pytest.mark.parametrize(
    "parameters",
    [
        {"stream": True},
        {"include": ["logprobs"]},
        {"timestamp_granularities": ["word"]},
        {"chunking_strategy": "auto"},
        {"chunking_strategy": {"type": "server_vad"}},
        {"known_speaker_names": ["anna"]},
    ],
)
@TRANSLATIONS
async def test_parameters_unknown_to_translations_are_refused(client: AsyncOpenAI, parameters: dict[str, Any]) -> None:
    (name,) = parameters
    with pytest.raises(openai.BadRequestError) as caught:
        await client.audio.translations.create(file=FILE, model=MODEL, extra_body=parameters)
    assert (caught.value.param, caught.value.code) == (name, "unsupported")


# --- Streams


async def test_a_stream(client: AsyncOpenAI) -> None:
    stream = await client.audio.transcriptions.create(file=FILE, model=MODEL, stream=True)
    events = [event async for event in stream]
    assert [event.to_dict() for event in events] == [
        {"type": "transcript.text.delta", "delta": "The beach was a popular spot."},
        {"type": "transcript.text.delta", "delta": " People swam, and ran."},
        {
            "type": "transcript.text.done",
            "text": TEXT,
            "usage": {
                "type": "tokens",
                "input_tokens": 325,
                "input_token_details": {"text_tokens": 0, "audio_tokens": 325},
                "output_tokens": 10,
                "total_tokens": 335,
            },
        },
    ]
    for event in events:  # the SDK accepts any event; its types do not
        assert EVENTS.validate_python(event.to_dict()) == event


async def test_a_stream_with_logprobs(client: AsyncOpenAI) -> None:
    stream = await client.audio.transcriptions.create(file=FILE, model=MODEL, stream=True, include=["logprobs"])
    *deltas, done = [event async for event in stream]
    for event in (*deltas, done):
        assert EVENTS.validate_python(event.to_dict()) == event
    told_before = [token for event in deltas for token in event.to_dict()["logprobs"]]
    assert [token["token"] for token in told_before] == [f" {word}" for word in TEXT.split()]
    assert done.to_dict()["logprobs"] == told_before


async def test_segments_stream_as_they_come(client: AsyncOpenAI, core: ScriptedTranscriptions) -> None:
    read = asyncio.Event()

    async def wait(event: Event) -> None:
        if isinstance(event, Segment) and event.index == 1:
            await read.wait()

    core.between = wait
    stream = aiter(await client.audio.transcriptions.create(file=FILE, model=MODEL, stream=True))
    async with asyncio.timeout(PATIENCE_SECONDS):
        first = await anext(stream)
        assert first.to_dict()["delta"] == "The beach was a popular spot."
        read.set()
        assert [event.type async for event in stream] == ["transcript.text.delta", "transcript.text.done"]


async def test_a_silent_stream_is_only_done(client: AsyncOpenAI, core: ScriptedTranscriptions) -> None:
    core.events = scripted_events(())
    stream = await client.audio.transcriptions.create(file=FILE, model=MODEL, stream=True, response_format="text")
    (done,) = [event async for event in stream]
    assert (done.type, done.text) == ("transcript.text.done", "")


async def test_deltas_joined_are_the_text(client: AsyncOpenAI, core: ScriptedTranscriptions) -> None:
    core.events = scripted_events(
        [segment(at, at, at + 1, text) for at, text in enumerate(["  ", " one ", "", " two", "三 "])]
    )
    stream = await client.audio.transcriptions.create(file=FILE, model=MODEL, stream=True)
    *deltas, done = [event async for event in stream]
    assert [event.delta for event in deltas] == ["one", "  two", "三"]
    assert done.text == "one  two三"


async def test_an_error_before_the_first_event_is_a_status(client: AsyncOpenAI, core: ScriptedTranscriptions) -> None:
    async def fail(event: Event) -> None:
        raise InvalidRequest("this is no audio", param="file")

    core.between = fail
    with pytest.raises(openai.BadRequestError) as caught:
        await client.audio.transcriptions.create(file=FILE, model=MODEL, stream=True)
    assert caught.value.param == "file"


async def test_an_error_after_the_first_event_is_in_band(client: AsyncOpenAI, core: ScriptedTranscriptions) -> None:
    async def fail(event: Event) -> None:
        if isinstance(event, Finished):
            raise InvalidRequest("the file breaks off", param="file")

    core.between = fail
    stream = await client.audio.transcriptions.create(file=FILE, model=MODEL, stream=True)
    seen = []
    with pytest.raises(openai.APIError, match="the file breaks off"):
        async for event in stream:
            seen.append(event.type)
    assert seen == ["transcript.text.delta"] * 2


# --- Errors


async def test_refusals_name_the_parameter(client: AsyncOpenAI, core: ScriptedTranscriptions) -> None:
    for parameters, param, says in [
        ({"response_format": "diarized_json"}, "response_format", "this server does not separate speakers"),
        ({"response_format": "mp3"}, "response_format", "one of json, text, srt, verbose_json, vtt"),
        ({"known_speaker_names": ["anna"]}, "known_speaker_names", "not supported"),
        ({"known_speaker_references": ["data:audio/wav;base64,AA"]}, "known_speaker_references", "not supported"),
        ({"keywords": ["allm"]}, "keywords", "not supported"),
        ({"languages": ["en", "de"]}, "languages", "not supported"),
        ({"stream": True, "response_format": "srt"}, "stream", "json or text, not srt"),
        ({"stream": True, "response_format": "verbose_json"}, "stream", "json or text, not verbose_json"),
        ({"stream": "maybe"}, "stream", "'true' or 'false'"),
        ({"include": ["logprobs"], "response_format": "text"}, "include", "json, not text"),
        ({"include": ["everything"]}, "include", "may contain 'logprobs', not 'everything'"),
        ({"timestamp_granularities": ["word"]}, "timestamp_granularities", "verbose_json, not json"),
        (
            {"timestamp_granularities": ["letter"], "response_format": "verbose_json"},
            "timestamp_granularities",
            "not 'letter'",
        ),
        ({"language": "klingon"}, "language", "not 'klingon'"),
        ({"temperature": 1.5}, "temperature", "from 0 to 1, not 1.5"),
        ({"temperature": "warm"}, "temperature", "a number, not 'warm'"),
        ({"prompt": "x" * 70_000}, "prompt", "at most 65536"),
        ({"beam_size": 0}, "beam_size", "from 1 to 10"),
        ({"beam_size": 1.5}, "beam_size", "a whole number"),
        ({"vad_filter": "x"}, "vad_filter", "'true' or 'false'"),
        ({"vad_filter": False, "chunking_strategy": "auto"}, "vad_filter", "mutually exclusive"),
        ({"chunking_strategy": "none"}, "chunking_strategy", "'auto' or an object"),
        ({"chunking_strategy": {"type": "x"}}, "chunking_strategy.type", "must be 'server_vad', not 'x'"),
        ({"chunking_strategy": {"threshold": 0.5}}, "chunking_strategy.type", "must be 'server_vad'"),
        (
            {"chunking_strategy": {"type": "server_vad", "threshold": 2}},
            "chunking_strategy.threshold",
            "from 0 to 1, not 2",
        ),
        (
            {"chunking_strategy": {"type": "server_vad", "silence_duration_ms": 1e6}},
            "chunking_strategy.silence_duration_ms",
            "from 0 to 30000",
        ),
        (
            {"chunking_strategy": {"type": "server_vad", "prefix_padding_ms": -1}},
            "chunking_strategy.prefix_padding_ms",
            "from 0 to 5000",
        ),
        ({"model": ""}, "model", "Missing required parameter"),
    ]:
        with case(parameters=parameters, param=param, says=says):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.audio.transcriptions.create(file=FILE, model=MODEL, extra_body=parameters)
            assert caught.value.param == param
            assert says in caught.value.message
            assert caught.value.type == "invalid_request_error"
            assert not core.requests


@TRANSLATIONS
async def test_unknown_parameters_are_named_or_refused(
    client: AsyncOpenAI, core: ScriptedTranscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty ones are accepted."""
    for calls in (client.audio.transcriptions, client.audio.translations):
        given: dict[str, Any] = {"file": FILE, "model": MODEL}
        unknown = {"hotwords": "allm", "x": {"y": 1}, "empty": ""}
        with case(calls=type(calls).__name__):
            create = calls.with_raw_response.create
            assert (await create(**given, extra_body=unknown)).headers[IGNORED_HEADER] == "hotwords, x[y]"
            assert IGNORED_HEADER not in (await create(**given, extra_body={"empty": ""})).headers
            answered = len(core.requests)
            with monkeypatch.context() as patch:
                patch.setattr(Call, "unknown_refused", True)
                with pytest.raises(openai.BadRequestError, match="Unknown parameter: 'hotwords'") as caught:
                    await create(**given, extra_body=unknown)
                assert caught.value.param == "hotwords"
                assert len(core.requests) == answered
                await create(**given, extra_body={"empty": ""})
                assert len(core.requests) == answered + 1


async def test_a_file_of_an_unknown_name_is_ignored(client: AsyncOpenAI, core: ScriptedTranscriptions) -> None:
    files = [("file", FILE), ("hint", ("hint.bin", b"\xff" * 100_000)), ("model", (None, MODEL, "text/plain"))]
    form = {"headers": {"Content-Type": "multipart/form-data"}}
    answer = await client.post("/audio/transcriptions", cast_to=dict[str, Any], files=files, options=form)
    assert (answer["text"], core.sounds) == (TEXT, [SOUND])


async def test_an_unknown_model(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.audio.transcriptions.create(file=FILE, model="whisper-17")
    assert caught.value.code == "model_not_found"


async def test_an_empty_file(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.audio.transcriptions.create(file=("speech.mp3", b""), model=MODEL)
    assert (caught.value.param, "'file' is empty" in caught.value.message) == ("file", True)


async def test_a_file_over_the_limit(client: AsyncOpenAI, core: ScriptedTranscriptions) -> None:
    await client.audio.transcriptions.create(file=("speech.mp3", b"x" * LIMIT_BYTES), model=MODEL)
    with pytest.raises(openai.APIStatusError) as caught:
        await client.audio.transcriptions.create(file=("speech.mp3", b"x" * (LIMIT_BYTES + 1)), model=MODEL)
    error = caught.value
    assert (error.status_code, error.param, error.type) == (413, "file", "invalid_request_error")
    assert f"{LIMIT_BYTES} bytes (ALLM_MAX_AUDIO_BYTES)" in error.message
    assert len(core.requests) == 1


# --- Forms that no SDK sends


def written(*parts: tuple[str, bytes]) -> bytes:
    """Builds a form of (name, value) pairs with the boundary `b`."""
    sent = [f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + value for name, value in parts]
    return b"\r\n".join((*sent, b"--b--\r\n"))


async def asked(
    channel: grpc.aio.Channel, data: bytes, kind: str = "multipart/form-data; boundary=b", client: str = ANN
) -> bytes:
    """Returns the whole answer to a request of one message."""
    stub = audio_service_pb2_grpc.AudioServiceStub(channel)
    messages = iter([httpbody_pb2.HttpBody(content_type=kind, data=data)])
    call = stub.CreateTranscription(messages, metadata=[("x-client-id", client)])
    return b"".join([message.data async for message in call])


async def test_fields_may_follow_the_file(channel: grpc.aio.Channel, core: ScriptedTranscriptions) -> None:
    data = written(("file", SOUND), ("model", MODEL.encode()), ("response_format", b"text"))
    assert await asked(channel, data) == f"{TEXT}\n".encode()
    assert core.sounds == [SOUND]


async def test_an_object_may_come_as_json(channel: grpc.aio.Channel, core: ScriptedTranscriptions) -> None:
    strategy = b'{"type": "server_vad", "threshold": 0.75}'
    await asked(channel, written(("file", SOUND), ("model", MODEL.encode()), ("chunking_strategy", strategy)))
    assert core.requests[0].vad == VadOptions(threshold=0.75)


async def test_rest_of_an_oversized_file_is_read_before_the_answer(channel: grpc.aio.Channel) -> None:
    sent = 0

    async def long() -> AsyncIterator[httpbody_pb2.HttpBody]:
        nonlocal sent
        yield httpbody_pb2.HttpBody(content_type="multipart/form-data; boundary=b", data=written(("file", b""))[:-9])
        for _ in range(100):
            yield httpbody_pb2.HttpBody(data=b"x" * LIMIT_BYTES)
            sent += 1

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(audio_service_pb2_grpc.AudioServiceStub(channel).CreateTranscription(long())))
    assert caught.value.code() == grpc.StatusCode.OUT_OF_RANGE
    assert sent == 100


async def test_a_file_must_come_in_time(channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "UPLOAD_SECONDS", 0.05)
    monkeypatch.setattr(multipart, "DISCARD_SECONDS", 0.05)

    async def slow() -> AsyncIterator[httpbody_pb2.HttpBody]:
        yield httpbody_pb2.HttpBody(content_type="multipart/form-data; boundary=b", data=written(("file", b"x"))[:-9])
        await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(audio_service_pb2_grpc.AudioServiceStub(channel).CreateTranscription(slow())))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert "to arrive" in (caught.value.details() or "")


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([("model", MODEL.encode())], "Missing required parameter: 'file'"),
        ([("file", SOUND)], "Missing required parameter: 'model'"),
        ([("file", SOUND), ("file", SOUND), ("model", MODEL.encode())], "'file' is given twice"),
        ([("file", SOUND), ("model", b"a"), ("model", b"b")], "'model' is given 2 times"),
    ],
)
async def test_forms_that_lack_or_repeat_something(
    channel: grpc.aio.Channel, parts: list[tuple[str, bytes]], says: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asked(channel, written(*parts))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert says in (caught.value.details() or "")


async def test_json_is_no_form(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=r"must be multipart/form-data, not 'application/json'"):
        await asked(channel, b'{"model": "m"}', "application/json")


async def test_disconnect_during_the_upload_leaves_nothing(channel: grpc.aio.Channel, tmp_path: Path) -> None:
    sent = asyncio.Event()

    async def forever() -> AsyncIterator[httpbody_pb2.HttpBody]:
        head = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
        yield httpbody_pb2.HttpBody(content_type="multipart/form-data; boundary=b", data=head + b"x" * 1000)
        sent.set()
        await asyncio.Event().wait()

    call = audio_service_pb2_grpc.AudioServiceStub(channel).CreateTranscription(forever())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await sent.wait()
        await until(lambda: files(tmp_path) > 0)
        call.cancel()
        await until(lambda: files(tmp_path) == 0)


async def test_disconnect_during_decoding_ends_it(channel: grpc.aio.Channel, core: ScriptedTranscriptions) -> None:
    async def never(event: Event) -> None:
        if isinstance(event, Finished):
            await asyncio.Event().wait()

    core.between = never
    data = written(("file", SOUND), ("model", MODEL.encode()), ("stream", b"true"))
    message = httpbody_pb2.HttpBody(content_type="multipart/form-data; boundary=b", data=data)
    call = audio_service_pb2_grpc.AudioServiceStub(channel).CreateTranscription(iter([message]))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await anext(aiter(call))
        call.cancel()
        await core.left.wait()


async def test_only_so_many_files_at_once_in_shares_of_the_clients(
    core: ScriptedTranscriptions, tmp_path: Path
) -> None:
    begun, end = asyncio.Semaphore(0), asyncio.Event()

    async def wait(event: Event) -> None:
        begun.release()
        await end.wait()

    core.between = wait
    data = written(("file", SOUND), ("model", MODEL.encode()))
    async with served(core, tmp_path, at_once=2) as channel, asyncio.timeout(PATIENCE_SECONDS):
        running = []
        for client in (ANN, ANN, BOB):  # the third has less than its share
            running.append(asyncio.create_task(asked(channel, data, client=client)))
            await begun.acquire()
        for client in (ANN, BOB):
            with pytest.raises(grpc.aio.AioRpcError, match="no more are accepted") as caught:
                await asked(channel, data, client=client)
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        end.set()
        await asyncio.gather(*running)
        await asked(channel, data)
