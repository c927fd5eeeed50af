"""allm.audio.v1 messages: configurations read into core requests, and core events written as responses."""

from __future__ import annotations

from allm.audio.v1 import transcription_pb2, transcription_service_pb2

from services.audio.api import limits
from services.audio.engine.messages import (
    Finished,
    LanguageFound,
    PartialText,
    Segment,
    Task,
    TokenLogprob,
    VadOptions,
    Word,
)
from services.audio.sound.source import Encoding, RawSound
from services.audio.transcription import Event, Started, Transcript, TranscriptionRequest, language_code
from services.errors import InvalidRequest

Config = transcription_service_pb2.TranscriptionConfig | transcription_service_pb2.TranslationConfig
Response = transcription_service_pb2.StreamTranscribeResponse

VAD_NAMES = ("vad.threshold", "vad.silence_duration_ms", "vad.padding_ms")
_ENCODINGS: dict[int, Encoding] = {
    transcription_pb2.SAMPLE_ENCODING_UNSPECIFIED: "s16le",
    transcription_pb2.SAMPLE_ENCODING_S16LE: "s16le",
    transcription_pb2.SAMPLE_ENCODING_F32LE: "f32le",
}


def read_config(config: Config, task: Task, *, live: bool = False) -> TranscriptionRequest:
    """Validates a configuration and converts it into a core request. Raises InvalidRequest."""
    return TranscriptionRequest(
        model=limits.check_model(config.model),
        task=task,
        language=language_code(config.language),
        prompt=limits.check_prompt(config.prompt),
        temperature=limits.check_temperature(config.temperature if config.HasField("temperature") else None),
        beam_size=limits.check_beam_size(config.beam_size if config.HasField("beam_size") else None),
        words=isinstance(config, transcription_service_pb2.TranscriptionConfig) and config.words,
        logprobs=isinstance(config, transcription_service_pb2.TranscriptionConfig) and config.logprobs,
        vad=_vad(config, live=live),
        live=live,
    )


def read_raw(config: Config) -> RawSound | None:
    """Returns the format of raw samples; None for an encoded file. Raises InvalidRequest."""
    if not config.HasField("raw"):
        return None
    raw = config.raw
    encoding = _ENCODINGS.get(raw.encoding)
    if encoding is None:
        raise InvalidRequest(f"'raw.encoding' has the unknown value {raw.encoding}.", param="raw.encoding")
    try:
        return RawSound(sample_rate=raw.sample_rate, channels=raw.channels or 1, encoding=encoding)
    except InvalidRequest as error:
        raise InvalidRequest(f"raw.{error.message}", param=f"raw.{error.param}") from error


def _vad(config: Config, *, live: bool) -> VadOptions | None:
    if config.HasField("vad_filter") and not config.vad_filter:
        if live:
            message = "'vad_filter' cannot be false: segments end at pauses."
            raise InvalidRequest(message, param="vad_filter")
        if config.HasField("vad"):
            raise InvalidRequest("'vad' and 'vad_filter' false are mutually exclusive.", param="vad")
        return None
    vad = config.vad
    return limits.vad_options(
        vad.threshold if vad.HasField("threshold") else None,
        vad.silence_duration_ms if vad.HasField("silence_duration_ms") else None,
        vad.padding_ms if vad.HasField("padding_ms") else None,
        VAD_NAMES,
    )


def transcript_message(transcript: Transcript) -> transcription_pb2.Transcript:
    """Converts a whole transcript."""
    return transcription_pb2.Transcript(
        text=transcript.text,
        language=transcript.language,
        language_probability=transcript.probability,
        duration=transcript.finished.seconds,
        speech_duration=transcript.finished.speech_seconds,
        segments=[segment_message(segment) for segment in transcript.segments],
        tokens=transcript.finished.tokens,
    )


def event_message(event: Event) -> Response:
    """Converts one event of a stream."""
    if isinstance(event, Started):
        return Response(started=transcription_service_pb2.TranscriptionStarted(model=event.model_id))
    if isinstance(event, LanguageFound):
        found = transcription_service_pb2.LanguageFound(language=event.language, probability=event.probability)
        return Response(language=found)
    if isinstance(event, PartialText):
        partial = transcription_service_pb2.PartialText(text=event.text, start=event.start, end=event.end)
        return Response(partial=partial)
    if isinstance(event, Segment):
        return Response(segment=segment_message(event))
    return Response(finished=_finished(event))


def segment_message(segment: Segment) -> transcription_pb2.Segment:
    """Converts a segment."""
    return transcription_pb2.Segment(
        index=segment.index,
        seek=segment.seek,
        start=segment.start,
        end=segment.end,
        text=segment.text,
        tokens=segment.tokens,
        temperature=segment.temperature,
        avg_logprob=segment.avg_logprob,
        compression_ratio=segment.compression_ratio,
        no_speech_prob=segment.no_speech_prob,
        words=[_word(word) for word in segment.words or ()],
        logprobs=[_logprob(token) for token in segment.logprobs or ()],
    )


def _finished(event: Finished) -> transcription_service_pb2.TranscriptionFinished:
    return transcription_service_pb2.TranscriptionFinished(
        language=event.language, duration=event.seconds, speech_duration=event.speech_seconds, tokens=event.tokens
    )


def _word(word: Word) -> transcription_pb2.Word:
    return transcription_pb2.Word(word=word.word, start=word.start, end=word.end, probability=word.probability)


def _logprob(token: TokenLogprob) -> transcription_pb2.TokenLogprob:
    return transcription_pb2.TokenLogprob(token=token.piece, logprob=token.logprob)
