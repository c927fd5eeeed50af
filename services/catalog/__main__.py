"""The catalog service: `python -m services.catalog`."""

from __future__ import annotations

import grpc
from allm.keys.v1 import keys_pb2, keys_pb2_grpc
from allm.models.v1 import machine_service_pb2, machine_service_pb2_grpc, model_service_pb2, model_service_pb2_grpc
from allm.ollama.v1 import models_service_pb2_grpc as ollama_service_pb2_grpc
from allm.openai.v1 import models_service_pb2_grpc

from services.catalog.api.keys_servicer import KeyServicer
from services.catalog.api.machine_servicer import MachineServicer
from services.catalog.api.models_facade import ModelsFacade
from services.catalog.api.models_servicer import ModelServicer
from services.catalog.api.ollama_facade import OllamaModelsFacade
from services.catalog.api_keys import ApiKeys
from services.catalog.catalog import Catalog
from services.catalog.database import FILE_NAME, MIGRATIONS, CatalogDatabase
from services.catalog.machine_samples import MachineSamples
from services.catalog.machine_watch import KEPT_SECONDS
from services.catalog.registration.registrations import Registrations
from services.models.artifacts import check_publishers, load_supported
from services.rpc.server import Application, run
from services.settings.settings import Settings

FILE_SECONDS = 5.0  # how long the start waits for the models file; local models are registered by then


async def build(server: grpc.aio.Server, settings: Settings) -> Application:
    """Builds the service: database, registrations, core, and the two wire formats on top."""
    check_publishers(settings.model.publishers)
    supported = load_supported(settings.model.supported)
    database = await CatalogDatabase.open(settings.home / FILE_NAME, MIGRATIONS)
    try:
        registrations = await Registrations.load(database)
        keys = await ApiKeys.load(database)
        samples = MachineSamples(database)
        past = await samples.load(KEPT_SECONDS)
    except BaseException:
        await database.close()
        raise
    catalog = Catalog(registrations, settings.model, supported, past=past, samples=samples)
    await catalog.declarations.wait_until_attempted(FILE_SECONDS)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(catalog), server)
    models_service_pb2_grpc.add_ModelsServiceServicer_to_server(ModelsFacade(catalog), server)
    ollama_service_pb2_grpc.add_ModelsServiceServicer_to_server(OllamaModelsFacade(catalog), server)
    machine = MachineServicer(catalog.machine_watchers)
    machine_service_pb2_grpc.add_MachineServiceServicer_to_server(machine, server)
    keys_pb2_grpc.add_KeyServiceServicer_to_server(KeyServicer(keys), server)

    async def close() -> None:
        await catalog.close()
        await keys.close()
        await database.close()

    async def leave() -> None:
        # Watches never end by themselves and would block the drain.
        catalog.end_watches()
        keys.watchers.close()

    models_name = model_service_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name
    keys_name = keys_pb2.DESCRIPTOR.services_by_name["KeyService"].full_name
    machine_name = machine_service_pb2.DESCRIPTOR.services_by_name["MachineService"].full_name
    names = [models_name, machine_name, keys_name]
    return Application(names, close, leave, models=lambda: {model.id for model in registrations})


if __name__ == "__main__":
    run(build, "catalog")
