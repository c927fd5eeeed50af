"""allm.models.v1.ModelService: the gRPC service on top of the catalog."""

from __future__ import annotations

from allm.models.v1 import model_pb2, model_service_pb2, model_service_pb2_grpc
from google.protobuf import duration_pb2

from services.auth.identity import ADMIN, SERVICE, own_role
from services.catalog.api import hub_messages, messages
from services.catalog.api.messages import all_visible, required_id, visible
from services.catalog.catalog import Catalog
from services.catalog.model_view import ModelView
from services.catalog.registration.composition import Composition
from services.catalog.registration.register import Change, NewModel
from services.catalog.replica_status import REPORT_WITHIN
from services.catalog.watches import Changed, Removed
from services.errors import Forbidden
from services.models import wire
from services.models.hub.repository import hub_offline
from services.rpc.call import Call, typed

REGISTER_SECONDS = 120.0  # a hub may be slow
SECONDS = 30.0  # a disk may be, too


class ModelServicer(model_service_pb2_grpc.ModelServiceServicer):
    """The typed models API."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._messages = messages.ModelMessages()

    @typed(REGISTER_SECONDS, scope=ADMIN)
    async def RegisterModel(  # noqa: N802
        self, request: model_service_pb2.RegisterModelRequest, call: Call
    ) -> model_service_pb2.RegisterModelResponse:
        """Checks a source and registers it as a model."""
        new = NewModel(
            id=request.id,
            source=request.source,
            format=request.format,
            modality=request.modality,
            aliases=tuple(request.aliases),
            composition=Composition(request.base, messages.read_loras(request.loras)),
            image_defaults=wire.read_image_defaults(request.image_defaults),
            runtime=request.runtime,
            engine=wire.read_engine(request.engine),
        )
        return model_service_pb2.RegisterModelResponse(model=self._message(await self._catalog.register(new), call))

    @typed(REGISTER_SECONDS, scope=ADMIN)
    async def FindSource(  # noqa: N802
        self, request: model_service_pb2.FindSourceRequest, call: Call
    ) -> model_service_pb2.FindSourceResponse:
        """Finds what to register."""
        source, format, model_id = await self._catalog.find_source(request.source)
        return model_service_pb2.FindSourceResponse(source=source, format=format, id=model_id)

    @typed(REGISTER_SECONDS, scope=ADMIN)
    async def SearchHub(  # noqa: N802
        self, request: model_service_pb2.SearchHubRequest, call: Call
    ) -> model_service_pb2.SearchHubResponse:
        """Searches the hub."""
        words, format, limit = hub_messages.read_search(request)
        found = await self._catalog.search_hub(words, format, limit)
        return model_service_pb2.SearchHubResponse(
            repositories=[hub_messages.repository_message(finding, fits) for finding, fits in found]
        )

    @typed(REGISTER_SECONDS, scope=ADMIN)
    async def UpdateModel(  # noqa: N802
        self, request: model_service_pb2.UpdateModelRequest, call: Call
    ) -> model_service_pb2.UpdateModelResponse:
        """Changes a model's source, parts, aliases, defaults, runtime or engine settings."""
        given = request.HasField
        change = Change(
            source=request.source,
            aliases=tuple(request.aliases.names) if given("aliases") else None,
            base=request.base,
            loras=messages.read_loras(request.loras.loras) if given("loras") else None,
            image_defaults=wire.read_image_defaults(request.image_defaults) if given("image_defaults") else None,
            runtime=request.runtime if given("runtime") else None,
            engine=wire.read_engine(request.engine) if given("engine") else None,
        )
        view = await self._catalog.update(required_id(request.id), change)
        return model_service_pb2.UpdateModelResponse(model=self._message(view, call))

    @typed(SECONDS, scope="")
    async def GetModel(  # noqa: N802
        self, request: model_service_pb2.GetModelRequest, call: Call
    ) -> model_service_pb2.GetModelResponse:
        """Returns one model in any state, with its files."""
        view = visible(self._catalog.views, required_id(request.id))
        return model_service_pb2.GetModelResponse(
            model=self._message(view, call),
            manifest=messages.shown_manifest(view.desired.manifest),
            parts=map(messages.shown_part, view.desired.parts),
        )

    @typed(SECONDS, scope="")
    async def ListModels(  # noqa: N802
        self, request: model_service_pb2.ListModelsRequest, call: Call
    ) -> model_service_pb2.ListModelsResponse:
        """Lists all models that the caller may use, by id."""
        views = self._catalog.views
        file = messages.models_file(self._catalog.declarations) if ADMIN in call.identity.scopes else None
        if call.identity.models:  # a key limited to some models
            models = list(map(self._messages.of, all_visible(views)))
        else:
            models = self._messages.of_all(views.all())
        return model_service_pb2.ListModelsResponse(models=map(messages.shown_model, models), models_file=file)

    @typed(SECONDS, scope=ADMIN)
    async def DeleteModel(  # noqa: N802
        self, request: model_service_pb2.DeleteModelRequest, call: Call
    ) -> model_service_pb2.DeleteModelResponse:
        """Deletes a model."""
        await self._catalog.delete(required_id(request.id))
        return model_service_pb2.DeleteModelResponse()

    @typed(SECONDS, scope=ADMIN)
    async def LoadModel(  # noqa: N802
        self, request: model_service_pb2.LoadModelRequest, call: Call
    ) -> model_service_pb2.LoadModelResponse:
        """Marks a model to be loaded and kept in memory."""
        view = await self._catalog.load(required_id(request.id), request.runtime)
        return model_service_pb2.LoadModelResponse(model=self._message(view, call))

    @typed(SECONDS, scope=ADMIN)
    async def UnloadModel(  # noqa: N802
        self, request: model_service_pb2.UnloadModelRequest, call: Call
    ) -> model_service_pb2.UnloadModelResponse:
        """Frees a model's memory."""
        view = await self._catalog.unload(required_id(request.id))
        return model_service_pb2.UnloadModelResponse(model=self._message(view, call))

    @typed(scope=ADMIN, also=SERVICE)
    async def WatchModels(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: model_service_pb2.WatchModelsRequest, call: Call
    ) -> None:
        """Streams all models, a mark, then every change, until the caller cancels."""
        response = model_service_pb2.WatchModelsResponse
        modality = messages.read_modality(request.modality, "modality") if request.modality else None
        with self._catalog.watchers.watch(modality, statuses=request.statuses) as watch:
            while event := await watch.next():
                if isinstance(event, Changed):
                    desired = messages.desired_message(event.view, replicas=request.statuses)
                    await call.send(response(changed=desired))
                elif isinstance(event, Removed):
                    await call.send(response(removed_id=event.model_id))
                else:
                    await call.send(response(synced=model_service_pb2.Synced(hub=not hub_offline())))

    @typed(SECONDS, quiet=True, scope=SERVICE)
    async def ReportModelStatus(  # noqa: N802
        self, request: model_service_pb2.ReportModelStatusRequest, call: Call
    ) -> model_service_pb2.ReportModelStatusResponse:
        """Takes in a replica's heartbeat."""
        report = messages.read_report(request)
        if (role := own_role(call.identity)) not in {"", report.modality}:
            raise Forbidden(f"A process with the role {role} cannot report for {report.modality}.")
        known = self._catalog.report(report)
        within = duration_pb2.Duration()
        within.FromMilliseconds(round(REPORT_WITHIN * 1000))
        return model_service_pb2.ReportModelStatusResponse(send_complete=not known, report_within=within)

    @typed(SECONDS, scope="")
    async def ExplainModel(  # noqa: N802
        self, request: model_service_pb2.ExplainModelRequest, call: Call
    ) -> model_service_pb2.ExplainModelResponse:
        """Explains how every live replica resolves a model."""
        visible(self._catalog.views, required_id(request.id))
        view, opinions = self._catalog.explain(required_id(request.id))
        return model_service_pb2.ExplainModelResponse(
            model=self._message(view, call), resolutions=map(messages.resolution_message, opinions)
        )

    @typed(SECONDS, scope=ADMIN)
    async def RecordBenchmark(  # noqa: N802
        self, request: model_service_pb2.RecordBenchmarkRequest, call: Call
    ) -> model_service_pb2.RecordBenchmarkResponse:
        """Stores a measurement."""
        (measurement,) = wire.read_measurements([request.benchmark])
        await self._catalog.record(required_id(request.id), measurement)
        return model_service_pb2.RecordBenchmarkResponse()

    def _message(self, view: ModelView, call: Call) -> model_pb2.Model:
        call.model = view.id
        return messages.shown_model(self._messages.of(view))
