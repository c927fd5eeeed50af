"""Transcription and translation: sound in, segments out. The core of both wire formats."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from services.audio.engine.languages import LANGUAGES
from services.audio.engine.messages import (
    TEMPERATURES,
    Decoding,
    Finished,
    LanguageFound,
    PartialText,
    Segment,
    Task,
    TokenLogprob,
    Transcribed,
    VadOptions,
    WhisperReady,
)
from services.audio.manager import AudioModels, LoadedWhisper, TranscriptionJob
from services.audio.sound.decoders import SoundDecoders
from services.audio.sound.source import RawSound, SoundSource
from services.auth.caller import current_caller
from services.errors import AllmError, Internal, InvalidRequest
from services.models.store import StoredModel
from services.settings.modality_settings import AudioSettings
from services.telemetry import tracing

log = logging.getLogger(__name__)

TOKENS_PER_SECOND = 10  # that a second of sound costs where a key has a rate of tokens; its text costs nothing
LANGUAGES_SHOWN = 5  # most languages that a message names
# Characters of a prompt's end that the worker gets, many more than the tokens that a model reads: other requests' sound
# waits while the worker makes tokens of them, which takes seconds for the longest prompt that is allowed.
PROMPT_END = 4096
SHOWN = 40  # characters of the caller's text
# Other names that Whisper knows for some languages.
ALIASES = {
    "burmese": "my",
    "castilian": "es",
    "flemish": "nl",
    "haitian": "ht",
    "letzeburgesch": "lb",
    "mandarin": "zh",
    "moldavian": "ro",
    "moldovan": "ro",
    "panjabi": "pa",
    "pushto": "ps",
    "sinhalese": "si",
    "valencian": "ca",
}
_CODES = {name: code for code, name in LANGUAGES.items()} | ALIASES


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionRequest:
    """A request for the text of a sound."""

    model: str  # id or alias
    task: Task = "transcribe"
    language: str = ""  # code or English name of the spoken language; empty: it is detected
    prompt: str = ""  # text that could precede the sound: the model reads its last 223 tokens
    temperature: float | None = None  # 0 to 1, of the first attempt; it rises where a result looks wrong
    beam_size: int | None = None  # None: the service's setting
    words: bool = False
    logprobs: bool = False
    vad: VadOptions | None = None  # None: every second is decoded
    live: bool = False  # the sound arrives as it is spoken: partial texts are sent


@dataclass(frozen=True, slots=True)
class Started:
    """A loaded model has taken the request."""

    model_id: str


Event = Started | LanguageFound | Segment | PartialText | Finished


class Transcriptions:
    """The core of transcription and translation."""

    def __init__(self, models: AudioModels, decoders: SoundDecoders, settings: AudioSettings) -> None:
        self._models = models
        self._decoders = decoders
        self._settings = settings

    @asynccontextmanager
    async def transcribe(
        self,
        stored: StoredModel,
        request: TranscriptionRequest,
        source: SoundSource,
        raw: RawSound | None,
        client: str,
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """Runs a request for the duration of the block; leaving it early ends the decoding and the model's work.

        `raw` is the format of a source without a header. The events end after Finished.

        Raises, here or while events are read:
            ModelInvalid, ModelNotReady, Unsupported: the model cannot be served, or lacks the task.
            InvalidRequest: the sound cannot be decoded or is too long, or a parameter is wrong; `param` names it.
            Overloaded: too many requests wait, or the caller's key has used up its tokens of the minute.
            Timeout, Internal, OutOfMemory: the request took too long or failed.
        """
        caller = current_caller()
        await caller.admit()
        async with self._models.loaded(stored, request.task) as model:
            decoding = self._decoding(request, stored.id, model)
            with model.transcribe(client, decoding) as job:
                pump = asyncio.create_task(self._pump(source, raw, job))
                try:
                    yield _events(stored.id, job)
                finally:
                    pump.cancel()
                    await asyncio.gather(pump, return_exceptions=True)
                    caller.spend(math.ceil(job.processed_seconds * TOKENS_PER_SECOND))

    async def _pump(self, source: SoundSource, raw: RawSound | None, job: TranscriptionJob) -> None:
        """Sends the sound to the worker, as fast as the worker takes it. Any error ends the request."""
        try:
            with tracing.part("decode sound"):
                await self._feed(source, raw, job)
            await job.feed(b"", last=True)
        except AllmError as error:
            job.fail(error)
        except Exception:
            log.exception("unexpected error while decoding")
            job.fail(Internal("the audio could not be decoded; the service's log has the reason"))

    async def _feed(self, source: SoundSource, raw: RawSound | None, job: TranscriptionJob) -> None:
        async with self._decoders.open(source, raw) as sound:
            while samples := await sound.read():
                await job.feed(samples)

    def _decoding(self, request: TranscriptionRequest, model_id: str, model: LoadedWhisper) -> Decoding:
        """Converts the request into the worker's options. Raises InvalidRequest."""
        return Decoding(
            task=request.task,
            language=_language(request.language, model_id, model.ready),
            prompt=request.prompt.strip()[-PROMPT_END:],
            temperatures=_temperatures(request.temperature or 0.0),
            beam_size=request.beam_size or self._settings.beam_size,
            words=request.words,
            logprobs=request.logprobs,
            vad=request.vad,
            live=request.live,
        )


async def _events(model_id: str, job: TranscriptionJob) -> AsyncIterator[Event]:
    yield Started(model_id)
    while True:
        result = await job.next()
        if isinstance(result, Transcribed):
            for segment in result.segments:
                yield segment
        else:
            yield result
            if isinstance(result, Finished):
                return


def _language(wanted: str, model_id: str, ready: WhisperReady) -> str:
    """Returns the code of the requested language, if the model knows it. Raises InvalidRequest."""
    code = language_code(wanted)
    if code and code not in ready.languages:
        known = ", ".join(ready.languages[:LANGUAGES_SHOWN]) + (", ..." * (len(ready.languages) > LANGUAGES_SHOWN))
        raise InvalidRequest(f"'language' is {code!r}, but the model `{model_id}` supports {known}.", param="language")
    return code


def _temperatures(first: float) -> tuple[float, ...]:
    """Returns the first temperature and those that follow in the reference's steps, up to 1. Raises InvalidRequest."""
    if not 0 <= first <= 1:
        raise InvalidRequest(f"'temperature' must be from 0 to 1, not {first:g}.", param="temperature")
    step = TEMPERATURES[1] - TEMPERATURES[0]
    count = int((TEMPERATURES[-1] - first) / step + 1e-6) + 1
    return tuple(round(first + step * number, 6) for number in range(count))


def language_code(language: str) -> str:
    """Returns the code of a language; empty stays empty. Raises InvalidRequest for one that Whisper does not know."""
    name = language.strip().lower()
    if not name or name in LANGUAGES:
        return name
    if name not in _CODES:
        raise InvalidRequest(
            f"'language' must be an ISO 639-1 code or the English name of a language that Whisper supports, such as "
            f"'de' or 'german', not {language[:SHOWN]!r}.",
            param="language",
        )
    return _CODES[name]


UNFINISHED = Finished(request=0, language="", seconds=0.0, speech_seconds=0.0, tokens=0)


@dataclass(slots=True)
class Transcript:
    """The answer to a request so far; its lengths and tokens are in `finished`, once it is complete."""

    model_id: str = ""
    language: str = ""  # ISO 639-1; empty until it is known
    probability: float = 0.0  # of the language
    segments: list[Segment] = field(default_factory=list)
    finished: Finished = UNFINISHED
    _pieces: list[str] = field(default_factory=list)
    _space: str = ""  # at the end of the text so far: it counts only if more text follows

    @property
    def text(self) -> str:
        """The text so far: the joined deltas, without surrounding space."""
        return "".join(self._pieces)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """The logprobs of all tokens so far."""
        return [token for segment in self.segments for token in segment.logprobs or ()]

    @property
    def facts(self) -> dict[str, float]:
        """The fields for the request's log line."""
        done = self.finished
        return {"seconds": round(done.seconds, 2), "speech": round(done.speech_seconds, 2), "tokens": done.tokens}

    def add(self, event: Event) -> str:
        """Adds the next event. Returns the text that it adds; "" for none."""
        if isinstance(event, Started):
            self.model_id = event.model_id
        elif isinstance(event, LanguageFound):
            self.language, self.probability = event.language, event.probability
        elif isinstance(event, Finished):
            self.language = event.language or self.language
            self.finished = event
        elif isinstance(event, Segment):
            self.segments.append(event)
            return self._append(event.text)
        return ""

    async def gather(self, events: AsyncIterator[Event]) -> None:
        """Adds all events."""
        async for event in events:
            self.add(event)

    def _append(self, text: str) -> str:
        joined = self._space + text if self._pieces else text.lstrip()
        delta = joined.rstrip()
        self._space = joined[len(delta) :]
        if delta:
            self._pieces.append(delta)
        return delta
