"""The audio service: `python -m services.audio`."""

from __future__ import annotations

import grpc
from allm.audio.v1 import transcription_service_pb2, transcription_service_pb2_grpc
from allm.models.v1 import residency_service_pb2_grpc
from allm.openai.v1 import audio_service_pb2_grpc

from services.audio.api.facade import AudioFacade
from services.audio.api.servicer import TranscriptionServicer
from services.audio.api.uploads import Uploads
from services.audio.manager import AudioManager, AudioModels
from services.audio.memory_estimate import AudioMemoryEstimate
from services.audio.sound.decoders import SoundDecoders
from services.audio.transcription import Transcriptions
from services.models.device import resolve_device
from services.models.registry import EngineRegistry
from services.provision.figure_reader import FigureReader
from services.provision.provision import Provision
from services.residency.residency import Residency
from services.residency.servicer import ResidencyServicer
from services.rpc.own_identity import OwnIdentity
from services.rpc.server import Application, run
from services.settings.settings import Settings


async def build(server: grpc.aio.Server, settings: Settings) -> Application:
    """Builds the service: registry, manager and provision, decoders, core, and both wire formats on top."""
    audio = settings.audio
    device = resolve_device(audio.device)
    registry = EngineRegistry(device, forced=audio.device != "auto")
    manager = AudioManager(audio, device)
    residency = await Residency.open(settings, manager, AudioMemoryEstimate(audio, device, manager.options))
    residents = ResidencyServicer(residency)
    residency_service_pb2_grpc.add_ResidencyServiceServicer_to_server(residents, server)
    own = OwnIdentity.of_service(settings.auth, settings.model.replica, settings.tls.service)
    figures = FigureReader("audio", residency.snapshot, settings.residency.threshold)
    preload = settings.residency.preload
    provision = Provision(settings.model, "audio", registry, manager, preload, own, figures=figures)
    decoders = SoundDecoders(
        decoders=audio.decoders,
        folder=audio.upload_folder,
        max_seconds=audio.max_audio_seconds,
        queue=audio.queue_limit,
        stall_seconds=audio.stall_seconds,
    )
    transcriptions = Transcriptions(AudioModels(provision.store, manager), decoders, audio)
    uploads = Uploads(audio.upload_folder, audio.max_audio_bytes)
    servicer = TranscriptionServicer(transcriptions, uploads)
    transcription_service_pb2_grpc.add_TranscriptionServiceServicer_to_server(servicer, server)
    audio_service_pb2_grpc.add_AudioServiceServicer_to_server(AudioFacade(transcriptions, uploads), server)
    await decoders.start()
    await residency.start()
    await provision.start()

    async def leave() -> None:
        residents.end_watches()
        await provision.leave()

    async def close() -> None:
        await provision.close()
        await manager.close()
        await residency.close()
        await decoders.close()

    typed = [transcription_service_pb2.DESCRIPTOR.services_by_name["TranscriptionService"].full_name]
    return Application(typed, close, leave=leave, warm=provision.warm, models=provision.models)


if __name__ == "__main__":
    run(build, "audio")
