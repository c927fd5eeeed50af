"""OpenAI's transcriptions and translations: forms are read and checked, bodies and stream events are built.

Reference: https://platform.openai.com/docs/api-reference/audio. A parameter of OpenAI's that allm cannot honour is
rejected by name; an unknown parameter is ignored, and named in the response. Extensions: `vad_filter` and `beam_size`,
and for translations `language`, the spoken language. `duration` and `usage.seconds` measure the sound as sent, silence
included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from services.audio.api import limits
from services.audio.engine.languages import LANGUAGES
from services.audio.engine.messages import Segment, Task, TokenLogprob, VadOptions
from services.audio.transcription import Transcript, TranscriptionRequest, language_code
from services.errors import InvalidRequest, Unsupported
from services.rest.openai.body import JSON
from services.rest.openai.multipart import FormFields

PLAIN = "text/plain; charset=utf-8"
POSITIONS_PER_SECOND = 50  # encoder positions per second of sound, which count as input tokens
_encode = msgspec.json.Encoder().encode
Format = Literal["json", "text", "srt", "verbose_json", "vtt"]
FORMATS: tuple[Format, ...] = ("json", "text", "srt", "verbose_json", "vtt")
STREAMED: tuple[Format, ...] = ("json", "text")
GRANULARITIES = ("segment", "word")
VAD_NAMES = (
    "chunking_strategy.threshold",
    "chunking_strategy.silence_duration_ms",
    "chunking_strategy.prefix_padding_ms",
)
# Parameters of other OpenAI models, which distinguish speakers or take keywords and languages as hints.
REFUSED = ("known_speaker_names", "known_speaker_references", "keywords", "languages")
# OpenAI's translations lack these too.
NOT_TRANSLATED = (*REFUSED, "include", "timestamp_granularities", "chunking_strategy")


def whole(transcript: Transcript, answer: Answer, task: Task) -> tuple[str, bytes]:
    """Returns the content type and the bytes of a whole response."""
    if answer.format == "text":
        return PLAIN, f"{transcript.text}\n".encode()
    if answer.format == "srt":
        return PLAIN, srt(transcript.segments).encode()
    if answer.format == "vtt":
        return PLAIN, vtt(transcript.segments).encode()
    if answer.format == "verbose_json":
        return JSON, _encode(verbose_object(transcript, answer, task))
    return JSON, _encode(json_object(transcript, answer, task))


def json_object(transcript: Transcript, answer: Answer, task: Task) -> dict[str, Any]:
    """Builds the `json` response. OpenAI's translations report no usage."""
    found: dict[str, Any] = {"text": transcript.text}
    if answer.logprobs:
        found["logprobs"] = logprob_objects(transcript.logprobs)
    if task == "transcribe":
        found["usage"] = _duration(transcript)
    return found


def verbose_object(transcript: Transcript, answer: Answer, task: Task) -> dict[str, Any]:
    """Builds the `verbose_json` response. The language is its English name; a translation is in English."""
    language = "en" if task == "translate" else transcript.language
    found: dict[str, Any] = {
        "task": task,
        "language": LANGUAGES.get(language, language),
        "duration": float(transcript.finished.seconds),
        "text": transcript.text,
    }
    if answer.segments:
        found["segments"] = [_segment(segment) for segment in transcript.segments]
    if answer.words:
        found["words"] = [
            {"word": word.word.strip(), "start": _time(word.start), "end": _time(word.end)}
            for segment in transcript.segments
            for word in segment.words or ()
        ]
    if task == "transcribe":
        found["usage"] = _duration(transcript)
    return found


def delta_event(delta: str, segment: Segment, answer: Answer) -> dict[str, Any]:
    """Builds the event that adds text."""
    event: dict[str, Any] = {"type": "transcript.text.delta", "delta": delta}
    if answer.logprobs:
        event["logprobs"] = logprob_objects(segment.logprobs or ())
    return event


def done_event(transcript: Transcript, answer: Answer) -> dict[str, Any]:
    """Builds the last event of a stream. Its usage is in tokens: OpenAI's types allow no other unit here."""
    positions = math.ceil(transcript.finished.speech_seconds * POSITIONS_PER_SECOND)
    event: dict[str, Any] = {"type": "transcript.text.done", "text": transcript.text}
    if answer.logprobs:
        event["logprobs"] = logprob_objects(transcript.logprobs)
    event["usage"] = {
        "type": "tokens",
        "input_tokens": positions,
        "input_token_details": {"text_tokens": 0, "audio_tokens": positions},
        "output_tokens": transcript.finished.tokens,
        "total_tokens": positions + transcript.finished.tokens,
    }
    return event


def logprob_objects(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Builds logprob entries. A token may be less than a character, so its bytes are included."""
    return [
        {"token": token.piece.decode(errors="replace"), "logprob": token.logprob, "bytes": list(token.piece)}
        for token in tokens
    ]


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "id": segment.index,
        "seek": segment.seek,
        "start": _time(segment.start),
        "end": _time(segment.end),
        "text": segment.text,
        "tokens": segment.tokens,
        "temperature": float(segment.temperature),
        "avg_logprob": float(segment.avg_logprob),
        "compression_ratio": float(segment.compression_ratio),
        "no_speech_prob": float(segment.no_speech_prob),
    }


def _duration(transcript: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(transcript.finished.seconds)}


def _time(seconds: float) -> float:
    """Rounds to milliseconds; further digits are artefacts of binary fractions."""
    return round(float(seconds), 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The requested form of the response."""

    format: Format = "json"
    stream: bool = False
    segments: bool = True  # in verbose_json
    words: bool = False  # in verbose_json
    logprobs: bool = False


def read_transcription(fields: FormFields) -> tuple[Answer, TranscriptionRequest]:
    """Reads the form of POST /v1/audio/transcriptions.

    Raises:
        InvalidRequest: a value is wrong, or parameters are mutually exclusive; the error names them.
        Unsupported: a parameter cannot be honoured; the error names it.
    """
    _refuse(fields, REFUSED)
    answer = _answer(fields)
    return answer, _request(fields, answer, "transcribe")


def read_translation(fields: FormFields) -> tuple[Answer, TranscriptionRequest]:
    """Reads the form of POST /v1/audio/translations; raises as `read_transcription` does."""
    if fields.switch("stream"):
        raise Unsupported("'stream' is not supported for translations.", param="stream")
    _refuse(fields, NOT_TRANSLATED)
    answer = Answer(format=_format(fields))
    return answer, _request(fields, answer, "translate")


def _request(fields: FormFields, answer: Answer, task: Task) -> TranscriptionRequest:
    return TranscriptionRequest(
        model=limits.check_model(fields.text("model")),
        task=task,
        language=language_code(fields.text("language")),
        prompt=limits.check_prompt(fields.text("prompt")),
        temperature=limits.check_temperature(fields.number("temperature")),
        beam_size=limits.check_beam_size(fields.integer("beam_size")),
        words=answer.words,
        logprobs=answer.logprobs,
        vad=_vad(fields),
        live=False,
    )


def _refuse(fields: FormFields, names: Sequence[str]) -> None:
    for name in names:
        if fields.array(name) or fields.members(name):
            raise Unsupported(f"'{name}' is not supported by this server.", param=name)


def _format(fields: FormFields) -> Format:
    if fields.text("response_format") == "diarized_json":
        message = "'response_format' 'diarized_json' is not supported: this server does not separate speakers."
        raise Unsupported(message, param="response_format")
    return fields.choice("response_format", FORMATS, "json")


def _answer(fields: FormFields) -> Answer:
    kind = _format(fields)
    stream = bool(fields.switch("stream"))
    if stream and kind not in STREAMED:
        raise InvalidRequest(f"'stream' needs 'response_format' json or text, not {kind}.", param="stream")
    logprobs = _logprobs(fields)
    if logprobs and kind != "json":
        raise InvalidRequest(f"'include' with logprobs needs 'response_format' json, not {kind}.", param="include")
    granularities = fields.array("timestamp_granularities")
    for name in granularities:
        if name not in GRANULARITIES:
            message = f"'timestamp_granularities' may contain 'segment' and 'word', not {name[:40]!r}."
            raise InvalidRequest(message, param="timestamp_granularities")
    if granularities and kind != "verbose_json":
        message = f"'timestamp_granularities' needs 'response_format' verbose_json, not {kind}."
        raise InvalidRequest(message, param="timestamp_granularities")
    return Answer(
        format=kind,
        stream=stream,
        segments="segment" in granularities or not granularities,
        words="word" in granularities,
        logprobs=logprobs,
    )


def _logprobs(fields: FormFields) -> bool:
    included = fields.array("include")
    for name in included:
        if name != "logprobs":
            raise InvalidRequest(f"'include' may contain 'logprobs', not {name[:40]!r}.", param="include")
    return bool(included)


def _vad(fields: FormFields) -> VadOptions | None:
    """Returns the options of voice activity detection; None decodes every second."""
    strategy = fields.members("chunking_strategy")
    if fields.switch("vad_filter") is False:
        if strategy is not None:
            raise InvalidRequest(
                "'chunking_strategy' and 'vad_filter' false are mutually exclusive.", param="vad_filter"
            )
        return None
    if strategy is None or strategy == "auto":
        return VadOptions()
    if not isinstance(strategy, dict):
        message = f"'chunking_strategy' must be 'auto' or an object of type 'server_vad', not {strategy[:40]!r}."
        raise InvalidRequest(message, param="chunking_strategy")
    if strategy.get("type") != "server_vad":
        message = f"'chunking_strategy.type' must be 'server_vad', not {strategy.get('type', '')[:40]!r}."
        raise InvalidRequest(message, param="chunking_strategy.type")
    members = FormFields([(f"chunking_strategy.{key}", value) for key, value in strategy.items()])
    threshold, silence, padding = VAD_NAMES
    return limits.vad_options(members.number(threshold), members.integer(silence), members.integer(padding), VAD_NAMES)


def srt(segments: Iterable[Segment]) -> str:
    """Returns a SubRip file: numbered cues, a comma before the milliseconds. A segment without text has no cue."""
    cues = enumerate(_cues(segments, ","), 1)
    return "".join(f"{number}\n{times}\n{text}\n\n" for number, (times, text) in cues)


def vtt(segments: Iterable[Segment]) -> str:
    """Returns a WebVTT file. Hours are always written, as OpenAI's API does; readers need them only from the first hour
    on."""
    # In WebVTT `&` and `<` open an escape and a tag.
    cues = ((times, text.replace("&", "&amp;").replace("<", "&lt;")) for times, text in _cues(segments, "."))
    return "WEBVTT\n\n" + "".join(f"{times}\n{text}\n\n" for times, text in cues)


def _cues(segments: Iterable[Segment], mark: str) -> Iterator[tuple[str, str]]:
    """Yields the timing line and the text of each cue."""
    for segment in segments:
        if text := cue_text(segment.text):
            yield f"{clock(segment.start, mark)} --> {clock(segment.end, mark)}", text


def cue_text(text: str) -> str:
    """Cleans a segment's text for a cue: an arrow would read as a timing line, an empty line as the cue's end."""
    while "-->" in text:  # repeated, because `--->` becomes another arrow
        text = text.replace("-->", "->")
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def clock(seconds: float, mark: str) -> str:
    """Formats a time as `HH:MM:SS`, `mark` and milliseconds; a negative time becomes zero."""
    total = max(0, round(seconds * 1000))
    hours, rest = divmod(total, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    whole, milliseconds = divmod(rest, 1000)
    return f"{hours:02d}:{minutes:02d}:{whole:02d}{mark}{milliseconds:03d}"
