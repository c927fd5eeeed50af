"""The image service: `python -m services.image`."""

from __future__ import annotations

import grpc
from allm.image.v1 import image_service_pb2, image_service_pb2_grpc
from allm.models.v1 import residency_service_pb2_grpc
from allm.openai.v1 import image_service_pb2_grpc as openai_image_service_pb2_grpc

from services.image.api.facade import ImagesFacade
from services.image.api.form import ImageUploads
from services.image.api.servicer import ImageServicer
from services.image.api.upload_room import UploadRoom
from services.image.image_files import ImageFiles
from services.image.images import Images
from services.image.manager import ImageManager, ImageModels
from services.image.memory_estimate import ImageMemoryEstimate
from services.image.pictures.pictures import Pictures
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
    """Builds the service: registry, manager, provision, codecs, core, and the two wire formats on top."""
    image = settings.image
    device = resolve_device(image.device)
    registry = EngineRegistry(device, forced=image.device != "auto")
    manager = ImageManager(image, device)
    residency = await Residency.open(settings, manager, ImageMemoryEstimate(manager.options))
    residents = ResidencyServicer(residency)
    residency_service_pb2_grpc.add_ResidencyServiceServicer_to_server(residents, server)
    own = OwnIdentity.of_service(settings.auth, settings.model.replica, settings.tls.service)
    figures = FigureReader("image", residency.snapshot, settings.residency.threshold)
    preload = settings.residency.preload
    provision = Provision(settings.model, "image", registry, manager, preload, own, figures=figures)
    pictures = Pictures(image)
    files = ImageFiles(image.folder, image.folder_bytes, image.public_url)
    images = Images(ImageModels(provision.store, manager), pictures, image)
    room = UploadRoom(image.upload_bytes)
    servicer = ImageServicer(images, image.max_image_bytes, room)
    image_service_pb2_grpc.add_ImageServiceServicer_to_server(servicer, server)
    rest = ImagesFacade(images, files, ImageUploads(image.max_image_bytes, room))
    openai_image_service_pb2_grpc.add_ImagesServiceServicer_to_server(rest, server)
    await pictures.start()
    await files.start()
    await residency.start()
    await provision.start()

    async def leave() -> None:
        residents.end_watches()
        await provision.leave()

    async def close() -> None:
        await provision.close()
        await manager.close()
        await residency.close()
        await files.close()
        await pictures.close()

    typed = [image_service_pb2.DESCRIPTOR.services_by_name["ImageService"].full_name]
    return Application(typed, close, leave=leave, warm=provision.warm, models=provision.models)


if __name__ == "__main__":
    run(build, "image")
