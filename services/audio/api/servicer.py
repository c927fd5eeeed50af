"""allm.audio.v1.TranscriptionService: protobuf over the transcription core."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from allm.audio.v1 import transcription_service_pb2, transcription_service_pb2_grpc

from services.audio.api.messages import (
    Config,
    event_message,
    read_config,
    read_raw,
    transcript_message,
)
from services.audio.api.uploads import Uploads, in_time
from services.audio.engine.messages import Task
from services.audio.manager import AudioModels
from services.audio.sound.source import LiveFeed
from services.audio.transcription import Transcript, Transcriptions
from services.errors import AllmError, InvalidRequest
from services.rpc.call import Call, typed

Request = (
    transcription_service_pb2.TranscribeRequest
    | transcription_service_pb2.StreamTranscribeRequest
    | transcription_service_pb2.TranslateRequest
)


class TranscriptionServicer(transcription_service_pb2_grpc.TranscriptionServiceServicer):
    """The typed audio API."""

    def __init__(self, models: AudioModels, transcriptions: Transcriptions, uploads: Uploads) -> None:
        self._models = models
        self._transcriptions = transcriptions
        self._uploads = uploads

    @typed(operation="transcription")
    async def Transcribe(  # noqa: N802
        self, request: AsyncIterator[transcription_service_pb2.TranscribeRequest], call: Call
    ) -> transcription_service_pb2.TranscribeResponse:
        """Transcribes speech in the language spoken."""
        transcript = await self._whole(_Requests(request), "transcribe", call)
        return transcription_service_pb2.TranscribeResponse(
            model=transcript.model_id, transcript=transcript_message(transcript)
        )

    @typed(operation="translation")
    async def Translate(  # noqa: N802
        self, request: AsyncIterator[transcription_service_pb2.TranslateRequest], call: Call
    ) -> transcription_service_pb2.TranslateResponse:
        """Transcribes speech and translates it into English."""
        transcript = await self._whole(_Requests(request), "translate", call)
        return transcription_service_pb2.TranslateResponse(
            model=transcript.model_id, transcript=transcript_message(transcript)
        )

    @typed(operation="transcription")
    async def StreamTranscribe(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: AsyncIterator[transcription_service_pb2.StreamTranscribeRequest], call: Call
    ) -> None:
        """Transcribes live speech as it arrives."""
        requests = _Requests(request)
        config = await requests.config()
        wanted = read_config(config, "transcribe", live=True)
        raw = read_raw(config)
        stored = await self._models.find(wanted.model)
        call.model = stored.id
        feed = LiveFeed()
        transcript = Transcript()
        with _called_audio():
            try:
                async with asyncio.TaskGroup() as group:
                    listening = group.create_task(_listen(requests, feed))
                    async with self._transcriptions.transcribe(stored, wanted, feed, raw, call.client) as events:
                        async for event in events:
                            transcript.add(event)
                            await call.send(event_message(event))
                    listening.cancel()
            except ExceptionGroup as both:
                # The first failure cancels the other task: there is one cause.
                raise both.exceptions[0] from None
        call.facts["usage"] = transcript.facts

    async def _whole(self, requests: _Requests, task: Task, call: Call) -> Transcript:
        """Reads all of the audio before it starts: only then can every file format be decoded."""
        config = await requests.config()
        wanted = read_config(config, task)
        raw = read_raw(config)
        call.model = (await self._models.find(wanted.model)).id
        transcript = Transcript()
        with _called_audio(), self._uploads.open(call.client) as upload:
            async with in_time():
                async for data in requests.audio():
                    upload.write(data)
            # Again, because the upload may take an hour, and another generation may serve the model since.
            stored = await self._models.find(wanted.model)
            async with self._transcriptions.transcribe(stored, wanted, upload, raw, call.client) as events:
                await transcript.gather(events)
        call.facts["usage"] = transcript.facts
        return transcript


@contextmanager
def _called_audio() -> Iterator[None]:
    """Renames the parameter `file` to `audio` in errors that leave the block."""
    try:
        yield
    except AllmError as error:
        if error.param == "file":
            error.param = "audio"
        raise


async def _listen(requests: _Requests, feed: LiveFeed) -> None:
    """Forwards the caller's audio to the feed; waits while the feed is full."""
    async for data in requests.audio():
        await feed.put(data)
    await feed.end()


class _Requests:
    """A stream of requests: first the configuration, then the audio."""

    def __init__(self, messages: AsyncIterator[Request]) -> None:
        self._messages = messages

    async def config(self) -> Config:
        """Returns the configuration. Raises InvalidRequest if the first message is missing or has none."""
        message = await anext(self._messages, None)
        if message is None or message.WhichOneof("payload") != "config":
            raise InvalidRequest("The first message must have 'config'.", param="config")
        return message.config

    async def audio(self) -> AsyncIterator[bytes]:
        """Yields the audio of the other messages. Raises InvalidRequest if there is none, or for another payload."""
        there = False
        async for message in self._messages:
            if message.WhichOneof("payload") != "audio":
                raise InvalidRequest(
                    "Only the first message has 'config'; all others must have 'audio'.", param="audio"
                )
            if message.audio:
                there = True
                yield message.audio
        if not there:
            raise InvalidRequest("No message has 'audio'.", param="audio")
