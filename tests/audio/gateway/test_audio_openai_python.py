"""The official Python SDK, unmodified, transcribes and translates through the real gateway with real models."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import openai
import pytest

from tests.audio.gateway.multilingual import base_registered
from tests.audio.gateway.recoding import KINDS, encoded, samples_of
from tests.audio.transcribing import MAY_DIFFER, word_errors
from tests.speech import Clip, librivox, long_prompt
from tests.stack import MODEL, POLL_SECONDS, SPEECH_MODEL, Stack

PATIENCE_SECONDS = 60
# Greedy decoding: these tests do not measure accuracy.
FAST: dict[str, Any] = {"extra_body": {"beam_size": 1}}
SRT = re.compile(r"(\d+)\n\d\d:\d\d:\d\d,\d{3} --> \d\d:\d\d:\d\d,\d{3}\n(.+)\n")
VTT = re.compile(r"(?:\d\d:)?\d\d:\d\d\.\d{3} --> (?:\d\d:)?\d\d:\d\d\.\d{3}\n(.+)\n")


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stack.base_url, api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def clip() -> Clip:
    return librivox()[0]


def heard(said: str, clip: Clip) -> bool:
    """Returns True if the text roughly matches the clip's transcript."""
    return word_errors(said, clip.transcript) < MAY_DIFFER


def test_json_is_the_default(client: openai.OpenAI, clip: Clip) -> None:
    reply = client.audio.transcriptions.create(model=SPEECH_MODEL, file=clip.path, **FAST)
    assert heard(reply.text, clip)
    assert reply.usage is not None
    assert reply.usage.type == "duration"
    assert clip.seconds <= reply.usage.seconds < clip.seconds + 1


def test_text_and_subtitles(client: openai.OpenAI, clip: Clip) -> None:
    text, srt, vtt = (
        str(client.audio.transcriptions.create(model=SPEECH_MODEL, file=clip.path, response_format=format, **FAST))
        for format in ("text", "srt", "vtt")
    )
    assert heard(text, clip)
    cues = SRT.findall(srt)
    assert [number for number, _ in cues] == [str(at) for at in range(1, len(cues) + 1)]
    assert heard(" ".join(words for _, words in cues), clip)
    assert vtt.startswith("WEBVTT\n\n")
    assert heard(" ".join(VTT.findall(vtt)), clip)


@pytest.mark.parametrize("granularities", [None, ["segment"], ["word"], ["word", "segment"]])
def test_verbose_json_with_times(client: openai.OpenAI, clip: Clip, granularities: Any) -> None:
    wanted = {} if granularities is None else {"timestamp_granularities": granularities}
    reply = client.audio.transcriptions.create(
        model=SPEECH_MODEL, file=clip.path, response_format="verbose_json", **wanted, **FAST
    )
    assert heard(reply.text, clip)
    assert reply.language == "english"
    assert abs(reply.duration - clip.seconds) < 0.01
    assert bool(reply.segments) == ("segment" in (granularities or ["segment"]))
    assert bool(reply.words) == ("word" in (granularities or []))
    if reply.segments:
        assert "".join(segment.text for segment in reply.segments).strip() == reply.text
    for parts in (reply.segments or [], reply.words or []):
        times = [time for part in parts for time in (part.start, part.end)]
        assert all(earlier <= later for earlier, later in pairwise(times))
        assert all(0 <= time <= clip.seconds + 0.1 for time in times)


def test_a_stream(client: openai.OpenAI) -> None:
    clip = long_prompt()
    stream = client.audio.transcriptions.create(model=SPEECH_MODEL, file=clip.path, stream=True, **FAST)
    *deltas, done = list(stream)
    assert len(deltas) > 1
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert done.type == "transcript.text.done"
    assert "".join(event.delta for event in deltas) == done.text
    assert heard(done.text, clip)
    assert done.usage.output_tokens > 0
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens


def test_a_stream_sends_segments_while_others_are_decoded(stack: Stack, client: openai.OpenAI) -> None:
    """A caller who hangs up after the first segment ends an unfinished transcription."""
    pieces = [samples_of(long_prompt().path)] * 10  # many minutes of speech
    file = ("long.flac", encoded("flac", pieces))
    with client.audio.transcriptions.with_streaming_response.create(
        model=SPEECH_MODEL, file=file, stream=True, **FAST
    ) as reply:
        assert next(line for line in reply.iter_lines() if line).startswith("data: ")
        request = reply.headers["x-request-id"]
    assert logged(stack, request)["code"] == "CANCELLED"


def logged(stack: Stack, request: str) -> dict[str, Any]:
    """Returns the audio service's log record for the end of a request."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        lines = map(json.loads, (stack.home / "logs" / "audio.log").read_text().splitlines())
        found = [line for line in lines if line.get("request_id") == request and "ms" in line]
        if found:
            return found[-1]
        assert time.monotonic() < deadline, stack.output()
        time.sleep(POLL_SECONDS)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client: openai.OpenAI, clip: Clip, stream: bool) -> None:
    reply: Any = client.audio.transcriptions.create(
        model=SPEECH_MODEL, file=clip.path, include=["logprobs"], stream=stream, **FAST
    )
    answer = list(reply)[-1] if stream else reply
    assert all(-30 < token.logprob <= 0 for token in answer.logprobs)
    assert b"".join(bytes(map(int, token.bytes)) for token in answer.logprobs).decode().strip() == answer.text


@pytest.mark.parametrize(
    "parameters",
    [
        {"language": "en"},
        {"prompt": "A novel by Jane Austen."},
        {"temperature": 0.4},
        {"chunking_strategy": "auto"},
        {"chunking_strategy": {"type": "server_vad", "threshold": 0.4, "silence_duration_ms": 300}},
        {"extra_body": {"vad_filter": "false", "beam_size": 2}},
    ],
    ids=lambda parameters: next(iter(parameters)),
)
def test_parameters(client: openai.OpenAI, clip: Clip, parameters: dict[str, Any]) -> None:
    reply = client.audio.transcriptions.create(model=SPEECH_MODEL, file=clip.path, **{**FAST, **parameters})
    assert heard(reply.text, clip)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file(client: openai.OpenAI, clip: Clip, kind: str) -> None:
    """The format is detected from the content: the file name does not reveal it."""
    file = ("recording", encoded(kind, [samples_of(clip.path)]))
    assert heard(client.audio.transcriptions.create(model=SPEECH_MODEL, file=file, **FAST).text, clip)


def test_silence_is_no_text(client: openai.OpenAI, clip: Clip) -> None:
    file = ("silence.wav", encoded("wav", [samples_of(clip.path) * 0] * 10))
    reply = client.audio.transcriptions.create(model=SPEECH_MODEL, file=file, response_format="verbose_json", **FAST)
    assert (reply.text, reply.segments) == ("", [])


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # deprecated by the SDK, still in OpenAI's API
def test_another_language_than_english(stack: Stack, client: openai.OpenAI, clip: Clip) -> None:
    """The multilingual model detects the language and translates; the English model returns an error."""
    with base_registered(stack) as base:
        found = client.audio.transcriptions.create(model=base, file=clip.path, response_format="verbose_json", **FAST)
        assert found.language == "english"
        assert heard(found.text, clip)
        assert heard(client.audio.translations.create(model=base, file=clip.path, **FAST).text, clip)
        verbose: Any = client.audio.translations.create(
            model=base, file=clip.path, response_format="verbose_json", **FAST
        )
        assert verbose.language == "english"
        assert heard(verbose.text, clip)
        srt = client.audio.translations.create(model=base, file=clip.path, response_format="srt", **FAST)
        assert SRT.search(str(srt))
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.translations.create(model=SPEECH_MODEL, file=clip.path)
    assert caught.value.param == "model"
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.transcriptions.create(model=SPEECH_MODEL, file=clip.path, language="de")
    assert caught.value.param == "language"


@pytest.mark.parametrize(
    ("parameters", "status", "param", "code"),
    [
        ({"model": "nobody"}, 404, "model", "model_not_found"),
        ({"model": MODEL}, 400, "model", "unsupported"),
        ({"response_format": "docx"}, 400, "response_format", None),
        ({"response_format": "diarized_json"}, 400, "response_format", "unsupported"),
        ({"temperature": 2}, 400, "temperature", None),
        ({"timestamp_granularities": ["word"]}, 400, "timestamp_granularities", None),
        ({"known_speaker_names": ["me"]}, 400, "known_speaker_names", "unsupported"),
        ({"file": ("empty.wav", b"")}, 400, "file", None),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else "",
)
def test_errors(
    client: openai.OpenAI, clip: Clip, parameters: dict[str, Any], status: int, param: str, code: str | None
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.audio.transcriptions.create(**{"model": SPEECH_MODEL, "file": clip.path, **parameters})
    error = caught.value
    assert (error.status_code, error.param, error.code) == (status, param, code)


def test_a_form_without_a_file_or_without_a_model(client: openai.OpenAI, clip: Clip) -> None:
    headers = {"content-type": "multipart/form-data"}
    for files, body, param in (({"other": b"x"}, {"model": SPEECH_MODEL}, "file"), ({"file": clip.path}, {}, "model")):
        with pytest.raises(openai.BadRequestError) as caught:
            client.post("/audio/transcriptions", cast_to=object, body=body, files=files, options={"headers": headers})
        assert caught.value.param == param


def test_an_audio_model_does_not_chat(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=SPEECH_MODEL, messages=[{"role": "user", "content": "Hello?"}])
    assert (caught.value.param, caught.value.code) == ("model", "unsupported")
    assert f"`{SPEECH_MODEL}` is for transcription" in caught.value.message
