"""The core with a real worker and real weights: the text, the order of events, and every way a request ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import pytest_asyncio

from services.audio.engine.languages import LANGUAGES
from services.audio.engine.messages import TEMPERATURES, Decoding, Finished, LanguageFound, Segment, VadOptions
from services.audio.manager import SOUND_AHEAD, LoadedWhisper, TranscriptionJob
from services.audio.sound.source import PIECE_BYTES, LiveFeed, RawSound
from services.audio.transcription import PROMPT_END, Event, Started, language_code
from services.errors import (
    AllmError,
    Internal,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    RateLimited,
    Timeout,
    Unsupported,
)
from services.worker import watchdog
from services.worker.model_in_worker import JUST
from tests.audio.transcribing import MAY_DIFFER, PATIENCE_SECONDS, Audio, asked, text, transcribing, word_errors
from tests.late import late
from tests.processes import has_ended
from tests.speech import librivox
from tests.spending import Purse
from tests.whisper_weights import base_ct2, tiny_en_ct2, tiny_en_pt

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLAIN = RawSound(16_000)
SECOND = 2 * 16_000  # bytes
POLL_SECONDS = 0.02
whisper_tokenizer = late("whisper.tokenizer")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def audio(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Audio]:
    async with transcribing(tmp_path_factory.mktemp("audio"), {"tiny": tiny_en_ct2()}) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tight(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Audio]:
    """Runs the core with a limit of one request at a time."""
    limits = {"ALLM_AUDIO_BATCH": "1", "ALLM_AUDIO_QUEUE": "0", "ALLM_STALL_SECONDS": "60"}
    async with transcribing(tmp_path_factory.mktemp("tight"), {"tiny": tiny_en_ct2()}, **limits) as running:
        yield running


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 (of other processes: nothing tells)
            await asyncio.sleep(POLL_SECONDS)


async def worker(audio: Audio) -> psutil.Process:
    """Returns the worker that serves now."""
    await audio.file(librivox()[0].path)
    (resident,) = audio.residents
    return psutil.Process(resident.pid)


async def is_idle(audio: Audio) -> None:
    """Waits until no request has anything in the worker."""
    (resident,) = audio.residents
    await until(lambda: not (resident.counters.running or resident.counters.waiting))


def heard_by_worker(monkeypatch: pytest.MonkeyPatch) -> list[Decoding]:
    """Records the decodings that workers receive from now on."""
    sent: list[Decoding] = []
    transcribe = LoadedWhisper.transcribe

    def listen(model: LoadedWhisper, client: str, decoding: Decoding) -> AbstractContextManager[TranscriptionJob]:
        sent.append(decoding)
        return transcribe(model, client, decoding)

    monkeypatch.setattr(LoadedWhisper, "transcribe", listen)
    return sent


async def error_of(audio: Audio, *arguments: object, **changes: object) -> AllmError:
    with pytest.raises(AllmError) as caught, audio.upload(librivox()[0].path) as upload:
        await audio.events(asked(**changes), upload, *arguments)
    return caught.value


# --- results


@pytest.mark.parametrize("vad", [None, VadOptions()])
async def test_speech_is_sent_in_order(audio: Audio, vad: VadOptions | None) -> None:
    clip = librivox()[1]
    events = await audio.file(clip.path, vad=vad)
    assert events[0] == Started("tiny")
    assert isinstance(events[1], LanguageFound)
    assert (events[1].language, events[1].probability) == ("en", 1.0)
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.language == "en"
    assert end.seconds == pytest.approx(clip.seconds, abs=0.1)
    assert 0 < end.speech_seconds <= end.seconds + 0.1
    segments = [event for event in events[2:-1] if isinstance(event, Segment)]
    assert len(segments) == len(events) - 3
    assert [segment.index for segment in segments] == [*range(len(segments))]
    times = [time for segment in segments for time in (segment.start, segment.end)]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= clip.seconds + 0.1
    assert end.tokens > 0
    assert word_errors(text(events), clip.transcript) < MAY_DIFFER


async def test_requests_at_the_same_time_each_get_their_own_text(audio: Audio) -> None:
    said = await asyncio.gather(*(audio.file(clip.path) for clip in librivox()))
    for clip, events in zip(librivox(), said, strict=True):
        assert word_errors(text(events), clip.transcript) < MAY_DIFFER


async def test_words_and_logprobs_come_where_asked_for(audio: Audio) -> None:
    plain = await audio.file(librivox()[0].path)
    assert all(e.words is e.logprobs is None for e in plain if isinstance(e, Segment))
    rich = [e for e in await audio.file(librivox()[0].path, words=True, logprobs=True) if isinstance(e, Segment)]
    for segment in rich:
        assert "".join(word.word for word in segment.words) == segment.text
        assert b"".join(token.piece for token in segment.logprobs).decode() == segment.text
        assert all(token.logprob <= 0 for token in segment.logprobs)


async def test_silence_gives_no_text(audio: Audio) -> None:
    with audio.upload(bytes(5 * SECOND)) as upload:
        events = await audio.events(asked(vad=VadOptions()), upload, PLAIN)
    started, finished = events
    assert started == Started("tiny")
    assert isinstance(finished, Finished)
    assert (finished.language, finished.seconds, finished.speech_seconds, finished.tokens) == ("", 5.0, 0.0, 0)


async def test_a_live_request_sends_a_phrase_before_the_next_begins(audio: Audio) -> None:
    """The first phrase is returned while the feed is open, and a pause costs nothing."""
    clip, feed = librivox()[2], LiveFeed()
    sound = clip.path.read_bytes()[44:] + bytes(2 * SECOND)
    request = asked(vad=VadOptions(), live=True)
    async with asyncio.timeout(PATIENCE_SECONDS), audio.transcribing(request, feed, PLAIN) as events:
        feeding = asyncio.create_task(feed.put(sound))
        heard: list[Event] = []
        async for event in events:
            heard.append(event)
            if isinstance(event, Segment):
                break
        await feeding
        await feed.end()
        heard += [event async for event in events]
    assert isinstance(heard[-1], Finished)
    assert word_errors(text(heard), clip.transcript) < MAY_DIFFER


@pytest.mark.slow
async def test_an_original_checkpoint_is_served_by_the_other_runtime(tmp_path: Path) -> None:
    async with transcribing(tmp_path, {"tiny": tiny_en_pt()}) as audio:
        events = await audio.file(librivox()[1].path)
        assert word_errors(text(events), librivox()[1].transcript) < MAY_DIFFER


@pytest.mark.slow
async def test_a_multilingual_model_finds_the_language_and_translates(tmp_path: Path) -> None:
    async with transcribing(tmp_path, {"base": base_ct2()}) as audio:
        for task in ("transcribe", "translate"):
            events = await audio.file(librivox()[1].path, model="base", task=task)
            (found,) = [event for event in events if isinstance(event, LanguageFound)]
            assert found.language == "en"
            assert 0 < found.probability < 1
            assert word_errors(text(events), librivox()[1].transcript) < MAY_DIFFER


# --- errors


async def test_a_model_that_knows_english_alone_is_named_where_more_is_asked_of_it(audio: Audio) -> None:
    error = await error_of(audio, task="translate")
    assert isinstance(error, Unsupported)
    assert (error.param, error.http_status) == ("model", 400)
    assert error.message == "The model `tiny` is for transcription, not for translation."
    error = await error_of(audio, language="german")
    assert isinstance(error, InvalidRequest)
    assert error.param == "language"
    assert error.message == "'language' is 'de', but the model `tiny` supports en."
    assert text(await audio.file(librivox()[0].path, language="English"))


async def test_other_wrong_requests_are_refused_by_name(audio: Audio) -> None:
    assert isinstance(await error_of(audio, model="nobody"), ModelNotFound)
    assert (await error_of(audio, language="klingon")).param == "language"
    assert (await error_of(audio, temperature=1.5)).param == "temperature"


async def test_a_file_without_sound_ends_the_request_and_frees_the_worker(audio: Audio) -> None:
    before = await worker(audio)
    with audio.upload(b"This is no sound. " * 500) as upload, pytest.raises(InvalidRequest) as caught:
        await audio.events(asked(), upload)
    assert caught.value.param == "file"
    await is_idle(audio)
    assert await worker(audio) == before


async def test_sound_over_the_limit_is_refused_while_it_is_decoded(tmp_path: Path) -> None:
    async with transcribing(tmp_path, {"tiny": tiny_en_ct2()}, ALLM_MAX_AUDIO_SECONDS="2") as audio:
        with pytest.raises(InvalidRequest, match=r"2 seconds are accepted at once \(ALLM_MAX_AUDIO_SECONDS\)"):
            await audio.file(librivox()[0].path)


@pytest.mark.parametrize(
    ("given", "ladder"),
    [
        (None, TEMPERATURES),
        (0.0, TEMPERATURES),
        (0.2, TEMPERATURES[1:]),
        (0.5, (0.5, 0.7, 0.9)),
        (0.9, (0.9,)),
        (1.0, (1.0,)),
    ],
)
async def test_decoding_begins_at_the_temperature_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, audio: Audio, given: float | None, ladder: tuple[float, ...]
) -> None:
    """The fallback temperatures match the reference's, for results that look wrong."""
    sent = heard_by_worker(monkeypatch)
    async with audio.transcribing(asked(temperature=given), LiveFeed(), PLAIN):
        pass
    assert [decoding.temperatures for decoding in sent] == [pytest.approx(ladder)]


async def test_worker_gets_the_end_of_a_long_prompt(monkeypatch: pytest.MonkeyPatch, audio: Audio) -> None:
    """The whole prompt would delay other requests' audio by seconds."""
    sent = heard_by_worker(monkeypatch)
    prompt = "a" * 60_000 + "b" * PROMPT_END + " \n" * 1000
    async with audio.transcribing(asked(prompt=prompt), LiveFeed(), PLAIN):
        pass
    assert [decoding.prompt for decoding in sent] == ["b" * PROMPT_END]


# --- how requests end


async def test_cancelled_caller_frees_the_worker_at_once(audio: Audio) -> None:
    before, feed = await worker(audio), LiveFeed()
    async with audio.transcribing(asked(), feed, PLAIN) as events:
        assert await anext(events) == Started("tiny")
        await feed.put(librivox()[0].path.read_bytes()[44:])
    await is_idle(audio)
    await feed.put(bytes(100 * SECOND))  # no reader: the audio is dropped, and no call blocks
    assert await worker(audio) == before


async def test_a_killed_worker_ends_its_requests_and_the_next_gets_another(audio: Audio) -> None:
    before, feed = await worker(audio), LiveFeed()
    async with audio.transcribing(asked(), feed, PLAIN) as events:
        assert await anext(events) == Started("tiny")
        await feed.put(bytes(SECOND))
        (job,) = audio.residents[0]._requests.values()
        await until(lambda: time.monotonic() - job.started > JUST)  # otherwise the request might not have been read
        before.kill()
        with pytest.raises(Internal, match="SIGKILL"):
            async for _ in events:
                pass
    after = await worker(audio)
    assert after != before
    assert has_ended(before.pid)


async def test_a_hung_worker_is_replaced_and_its_request_times_out(
    tight: Audio, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await worker(tight)
    before.suspend()
    since, clock = time.monotonic(), time.monotonic
    fast = SimpleNamespace(monotonic=lambda: since + 20 * (clock() - since))  # one minute passes in three seconds
    monkeypatch.setattr(watchdog, "time", fast)
    with pytest.raises(Timeout, match="no progress for 60 seconds"):
        await tight.file(librivox()[0].path)
    monkeypatch.undo()
    assert await worker(tight) != before


async def test_beyond_the_queue_requests_are_refused(tight: Audio) -> None:
    await worker(tight)
    async with tight.transcribing(asked(), LiveFeed(), PLAIN) as events:
        await anext(events)
        error = await error_of(tight)
    assert isinstance(error, Overloaded)
    assert "ALLM_AUDIO_QUEUE" in error.message
    assert text(await tight.file(librivox()[0].path))


async def test_a_worker_that_falls_behind_holds_a_bounded_part_of_the_sound(audio: Audio) -> None:
    """Ten minutes are sent ahead; the rest stays with the caller."""
    process, feed = await worker(audio), LiveFeed()
    process.suspend()
    try:
        async with audio.transcribing(asked(vad=VadOptions()), feed, PLAIN) as events:
            assert await anext(events) == Started("tiny")
            (job,) = audio.residents[0]._requests.values()
            await feed.put(bytes(2 * SOUND_AHEAD))
            await until(lambda: job.unconsumed >= SOUND_AHEAD)
            putting = asyncio.create_task(feed.put(bytes(60 * SECOND)))
            await asyncio.sleep(POLL_SECONDS)
            assert job.unconsumed < SOUND_AHEAD + PIECE_BYTES
            process.resume()
            await putting
            await feed.end()
            async with asyncio.timeout(PATIENCE_SECONDS):
                end = [event async for event in events][-1]
            assert isinstance(end, Finished)
            assert end.seconds == 2 * SOUND_AHEAD / SECOND + 60
    finally:
        process.resume()


# --- keys with a token rate limit


async def test_a_second_of_sound_counts_as_ten_tokens(audio: Audio) -> None:
    purse = Purse(tokens=10)
    *_, finished = await purse.pays(audio.file(librivox()[0].path))
    assert isinstance(finished, Finished)
    assert finished.seconds * 10 <= purse.spent < finished.seconds * 10 + 1
    with pytest.raises(RateLimited):
        await purse.pays(audio.file(librivox()[0].path))


async def test_decoded_part_of_truncated_sound_counts(audio: Audio) -> None:
    purse = Purse(tokens=1_000_000)

    async def part() -> None:
        with audio.upload(librivox()[0].path) as upload:
            async with audio.transcribing(asked(), upload, client="ann") as events:
                async for event in events:
                    if isinstance(event, Segment):
                        return

    await purse.pays(part())
    *_, finished = await audio.file(librivox()[0].path)
    assert 0 < purse.spent <= finished.seconds * 10 + 1


async def test_every_code_and_every_name_of_the_reference_is_taken() -> None:
    assert {code: language_code(code) for code in LANGUAGES} == {code: code for code in LANGUAGES}
    assert {
        name: language_code(name) for name in whisper_tokenizer.TO_LANGUAGE_CODE
    } == whisper_tokenizer.TO_LANGUAGE_CODE


@pytest.mark.parametrize(
    ("given", "code"), [("", ""), ("  ", ""), ("EN", "en"), (" English ", "en"), ("Mandarin", "zh")]
)
async def test_case_and_space_do_not_matter(given: str, code: str) -> None:
    assert language_code(given) == code


@pytest.mark.parametrize("given", ["xx", "en-US", "klingon", "x" * 1000])
async def test_another_is_refused_by_name(given: str) -> None:
    with pytest.raises(InvalidRequest, match=given[:40]) as caught:
        language_code(given)
    assert caught.value.param == "language"
    assert len(caught.value.message) < 200
