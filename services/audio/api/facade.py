"""POST /v1/audio/transcriptions and /v1/audio/translations: OpenAI's wire format over the transcription core."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from allm.openai.v1 import audio_service_pb2_grpc
from google.api import httpbody_pb2

from services.audio.api.openai import Answer, delta_event, done_event, read_transcription, read_translation, whole
from services.audio.api.uploads import Uploads, read_upload
from services.audio.engine.messages import Segment
from services.audio.manager import AudioModels
from services.audio.sound.source import Upload
from services.audio.transcription import Event, Transcript, TranscriptionRequest, Transcriptions
from services.rest.openai import sse
from services.rest.openai.body import send_body
from services.rest.openai.multipart import FormFields, discarding_rest
from services.rest.openai.sse import facade
from services.rpc.call import Call

Messages = AsyncIterator[httpbody_pb2.HttpBody]
ReadFields = Callable[[FormFields], tuple[Answer, TranscriptionRequest]]


class AudioFacade(audio_service_pb2_grpc.AudioServiceServicer):
    """The REST facade of the audio service."""

    def __init__(self, models: AudioModels, transcriptions: Transcriptions, uploads: Uploads) -> None:
        self._models = models
        self._transcriptions = transcriptions
        self._uploads = uploads

    @facade(operation="transcription")
    async def CreateTranscription(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: Messages, call: Call
    ) -> None:
        """Transcribes speech in the language spoken; with `stream`, sends each segment as soon as it is decoded."""
        await self._read(request, read_transcription, call)

    @facade(operation="translation")
    async def CreateTranslation(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: Messages, call: Call
    ) -> None:
        """Transcribes speech and translates it into English."""
        await self._read(request, read_translation, call)

    async def _read(self, messages: Messages, read: ReadFields, call: Call) -> None:
        async with discarding_rest(messages):
            with self._uploads.open(call.client) as upload:
                form = await read_upload(messages, upload)
                fields = FormFields(form.fields)
                wanted = read(fields)
                call.ignore_unknown([*fields.unread(), *form.discarded])
                await self._answer(*wanted, upload, call)

    async def _answer(self, answer: Answer, wanted: TranscriptionRequest, upload: Upload, call: Call) -> None:
        stored = await self._models.find(wanted.model)
        call.model = stored.id
        transcript = Transcript()
        async with self._transcriptions.transcribe(stored, wanted, upload, None, call.client) as events:
            if answer.stream:
                await _stream(events, transcript, answer, call)
            else:
                await transcript.gather(events)
        if not answer.stream:
            await send_body(call, *whole(transcript, answer, wanted.task))
        call.facts["usage"] = transcript.facts


async def _stream(events: AsyncIterator[Event], transcript: Transcript, answer: Answer, call: Call) -> None:
    """Sends each segment as an event when it is decoded. An error before the first event can still set the status."""
    async for event in events:
        delta = transcript.add(event)
        if delta and isinstance(event, Segment):
            await call.send(sse.body((sse.data(delta_event(delta, event, answer)),)))
    await call.send(sse.body((sse.data(done_event(transcript, answer)), sse.DONE)))
