"""The audio service: `python -m services.audio`."""

from __future__ import annotations

import grpc
from allm.audio.v1 import transcription_service_pb2, transcription_service_pb2_grpc
from allm.openai.v1 import audio_service_pb2_grpc

from services.audio.api.facade import AudioFacade
from services.audio.api.servicer import TranscriptionServicer
from services.audio.api.uploads import Uploads
from services.audio.manager import CTRANSLATE2, AudioManager, AudioModels
from services.audio.memory_estimate import AudioMemoryEstimate
from services.audio.sound.decoders import SoundDecoders
from services.audio.transcription import Transcriptions
from services.modality import ModalityService, open_registry
from services.models.runtimes import RUNTIMES
from services.rpc.server import Application, run
from services.settings.settings import Settings
from services.worker.devices import cublas_environ, probe


async def build(server: grpc.aio.Server, settings: Settings) -> Application:
    """Builds the service: registry, manager and provision, decoders, core, and both wire formats on top."""
    audio = settings.audio
    registry = await open_registry(
        audio.device, RUNTIMES, (probe("whisper"), probe(CTRANSLATE2, environ=cublas_environ()))
    )
    manager = AudioManager(audio)
    needed = AudioMemoryEstimate(audio, manager.options)
    service = await ModalityService.open(server, settings, "audio", registry, manager, needed)
    models = AudioModels(service.provision.store, manager)
    decoders = SoundDecoders(
        decoders=audio.decoders,
        folder=audio.upload_folder,
        max_seconds=audio.max_audio_seconds,
        queue=audio.queue_limit,
        stall_seconds=audio.stall_seconds,
    )
    transcriptions = Transcriptions(models, decoders, audio)
    uploads = Uploads(audio.upload_folder, audio.max_audio_bytes)
    servicer = TranscriptionServicer(models, transcriptions, uploads)
    transcription_service_pb2_grpc.add_TranscriptionServiceServicer_to_server(servicer, server)
    audio_service_pb2_grpc.add_AudioServiceServicer_to_server(AudioFacade(models, transcriptions, uploads), server)
    await decoders.start()
    await service.start()

    async def close() -> None:
        await service.close()
        await decoders.close()

    typed = [transcription_service_pb2.DESCRIPTOR.services_by_name["TranscriptionService"].full_name]
    return service.application(typed, close)


if __name__ == "__main__":
    run(build, "audio")
