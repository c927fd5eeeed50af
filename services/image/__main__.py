"""The image service: `python -m services.image`."""

from __future__ import annotations

import grpc
from allm.image.v1 import image_service_pb2, image_service_pb2_grpc
from allm.openai.v1 import image_service_pb2_grpc as openai_image_service_pb2_grpc

from services.image.api.facade import ImagesFacade, ImageUploads, upload_room
from services.image.api.servicer import ImageServicer
from services.image.images import Images
from services.image.manager import ImageManager, ImageModels
from services.image.memory_estimate import ImageMemoryEstimate
from services.modality import ModalityService, open_registry
from services.models.runtimes import CPU, RUNTIMES
from services.pictures.image_files import ImageFiles
from services.pictures.pictures import Pictures
from services.rpc.server import Application, run
from services.settings.settings import Settings
from services.worker.devices import probe


async def build(server: grpc.aio.Server, settings: Settings) -> Application:
    """Builds the service: registry, manager, provision, codecs, core, and the two wire formats on top."""
    image = settings.image
    devices = () if image.device == CPU else (probe("diffusers"),)
    registry = await open_registry(image.device, RUNTIMES, devices)
    manager = ImageManager(image)
    needed = ImageMemoryEstimate(manager.options)
    service = await ModalityService.open(server, settings, "image", registry, manager, needed)
    models = ImageModels(service.provision.store, manager)
    pictures = Pictures(image)
    files = ImageFiles(image.folder, image.folder_bytes, image.public_url)
    images = Images(models, pictures, image)
    room = upload_room(image.upload_bytes)
    servicer = ImageServicer(models, images, image.max_image_bytes, room)
    image_service_pb2_grpc.add_ImageServiceServicer_to_server(servicer, server)
    rest = ImagesFacade(models, images, files, ImageUploads(image.max_image_bytes, room))
    openai_image_service_pb2_grpc.add_ImagesServiceServicer_to_server(rest, server)
    await pictures.start()
    await files.start()
    await service.start()

    async def close() -> None:
        await service.close()
        await files.close()
        await pictures.close()

    typed = [image_service_pb2.DESCRIPTOR.services_by_name["ImageService"].full_name]
    return service.application(typed, close)


if __name__ == "__main__":
    run(build, "image")
