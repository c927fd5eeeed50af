"""OpenAI transcription and translation requests: forms, validated and converted into core requests.

Reference: https://platform.openai.com/docs/api-reference/audio. A parameter of OpenAI's that allm cannot honour is
rejected by name; an unknown parameter is ignored. Extensions: `vad_filter` and `beam_size`, and for translations
`language`, the spoken language.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from services.audio.api import limits
from services.audio.engine.messages import VadOptions
from services.audio.transcription import TranscriptionRequest, language_code
from services.errors import InvalidRequest, Unsupported
from services.rest.openai.form_fields import FormFields

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The requested form of the response."""

    format: Format = "json"
    stream: bool = False
    segments: bool = True  # in verbose_json
    words: bool = False  # in verbose_json
    logprobs: bool = False


def read_transcription(given: Sequence[tuple[str, str]]) -> tuple[Answer, TranscriptionRequest]:
    """Reads the fields of POST /v1/audio/transcriptions.

    Raises:
        InvalidRequest: a value is wrong, or parameters exclude each other; the error names them.
        Unsupported: a parameter cannot be honoured; the error names it.
    """
    fields = FormFields(given)
    _refuse(fields, REFUSED)
    answer = _answer(fields)
    return answer, TranscriptionRequest(
        model=limits.check_model(fields.text("model")),
        task="transcribe",
        language=language_code(fields.text("language")),
        prompt=limits.check_prompt(fields.text("prompt")),
        temperature=limits.check_temperature(fields.number("temperature")),
        beam_size=limits.check_beam_size(fields.integer("beam_size")),
        words=answer.words,
        logprobs=answer.logprobs,
        vad=_vad(fields),
        live=False,
    )


def read_translation(given: Sequence[tuple[str, str]]) -> tuple[Answer, TranscriptionRequest]:
    """Reads the fields of POST /v1/audio/translations; raises as `read_transcription` does."""
    fields = FormFields(given)
    if fields.switch("stream"):
        raise Unsupported("'stream' is not supported for translations.", param="stream")
    _refuse(fields, NOT_TRANSLATED)
    return Answer(format=_format(fields)), TranscriptionRequest(
        model=limits.check_model(fields.text("model")),
        task="translate",
        language=language_code(fields.text("language")),
        prompt=limits.check_prompt(fields.text("prompt")),
        temperature=limits.check_temperature(fields.number("temperature")),
        beam_size=limits.check_beam_size(fields.integer("beam_size")),
        words=False,
        logprobs=False,
        vad=VadOptions() if fields.switch("vad_filter") is not False else None,
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
            message = f"'timestamp_granularities' may hold 'segment' and 'word', not {name[:40]!r}."
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
            raise InvalidRequest(f"'include' may hold 'logprobs', not {name[:40]!r}.", param="include")
    return bool(included)


def _vad(fields: FormFields) -> VadOptions | None:
    """Returns the options of voice activity detection; None decodes every second."""
    strategy = fields.members("chunking_strategy")
    if fields.switch("vad_filter") is False:
        if strategy is not None:
            raise InvalidRequest("'chunking_strategy' and 'vad_filter' false exclude each other.", param="vad_filter")
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
