"""OpenAI transcription responses: whole bodies and stream events, built from a transcript.

Reference: https://platform.openai.com/docs/api-reference/audio. `duration` and `usage.seconds` measure the sound as
sent, silence included.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from services.audio.api.openai_request import Answer
from services.audio.api.subtitles import SrtWriter, SubtitleWriter, VttWriter
from services.audio.api.transcript import Transcript
from services.audio.engine.languages import LANGUAGES
from services.audio.engine.messages import Segment, Task, TokenLogprob
from services.rest.openai.body import JSON

PLAIN = "text/plain; charset=utf-8"
POSITIONS_PER_SECOND = 50  # encoder positions per second of sound, which count as input tokens
_encode = msgspec.json.Encoder().encode


def whole(transcript: Transcript, answer: Answer, task: Task) -> tuple[str, bytes]:
    """Returns the content type and the bytes of a whole response."""
    if answer.format == "text":
        return PLAIN, f"{transcript.text}\n".encode()
    if answer.format == "srt":
        return PLAIN, _subtitles(SrtWriter(), transcript.segments)
    if answer.format == "vtt":
        return PLAIN, _subtitles(VttWriter(), transcript.segments)
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
        "duration": float(transcript.seconds),
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
    positions = math.ceil(transcript.speech_seconds * POSITIONS_PER_SECOND)
    event: dict[str, Any] = {"type": "transcript.text.done", "text": transcript.text}
    if answer.logprobs:
        event["logprobs"] = logprob_objects(transcript.logprobs)
    event["usage"] = {
        "type": "tokens",
        "input_tokens": positions,
        "input_token_details": {"text_tokens": 0, "audio_tokens": positions},
        "output_tokens": transcript.tokens,
        "total_tokens": positions + transcript.tokens,
    }
    return event


def logprob_objects(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Builds logprob entries. A token may be less than a character, so its bytes are included."""
    return [
        {"token": token.piece.decode(errors="replace"), "logprob": token.logprob, "bytes": list(token.piece)}
        for token in tokens
    ]


def _subtitles(writer: SubtitleWriter, segments: Sequence[Segment]) -> bytes:
    return "".join((writer.head, *_cues(writer, segments))).encode()


def _cues(writer: SubtitleWriter, segments: Sequence[Segment]) -> Iterator[str]:
    for segment in segments:
        yield writer.cue(segment)


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
    return {"type": "duration", "seconds": math.ceil(transcript.seconds)}


def _time(seconds: float) -> float:
    """Rounds to milliseconds; further digits are artefacts of binary fractions."""
    return round(float(seconds), 3)
