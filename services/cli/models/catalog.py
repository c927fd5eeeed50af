"""The catalog as the commands speak to it: one method for each call, with its time limit, errors as sentences."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence

from allm.models.v1 import manifest_pb2, model_pb2
from allm.models.v1 import model_service_pb2 as pb

from services.cli.models.connection import Connection, Lost, told
from services.cli.problem import Problem

ANSWER_SECONDS = 30.0
INSPECT_SECONDS = 600.0  # the catalog lists and reads beginnings of files, possibly from far away
AWAY_SECONDS = 60.0  # how long a catalog that is started again may be away while its models are watched
RETRY_SECONDS = 0.5


class Catalog:
    """Every method raises Refused, Lost or Late (services.cli.models.connection)."""

    def __init__(self, connection: Connection) -> None:
        self._stub = connection.models

    def register(
        self,
        model_id: str,
        source: str,
        format: str,
        modality: str = "",
        aliases: Sequence[str] = (),
        *,
        base: str = "",
        loras: Sequence[model_pb2.Lora] = (),
        image_defaults: model_pb2.ImageDefaults | None = None,
        runtime: str = "",
        engine: model_pb2.EngineSettings | None = None,
    ) -> model_pb2.Model:
        """Registers a model."""
        request = pb.RegisterModelRequest(
            id=model_id,
            source=source,
            format=format,
            modality=modality,
            aliases=aliases,
            base=base,
            loras=loras,
            image_defaults=image_defaults,
            runtime=runtime,
            engine=engine,
        )
        with told():
            return self._stub.RegisterModel(request, timeout=INSPECT_SECONDS).model

    def update(
        self,
        model_id: str,
        source: str,
        aliases: Sequence[str] | None,
        *,
        base: str = "",
        loras: Sequence[model_pb2.Lora] | None = None,
        image_defaults: model_pb2.ImageDefaults | None = None,
        runtime: str | None = None,
        engine: model_pb2.EngineSettings | None = None,
    ) -> model_pb2.Model:
        """Gives a model a new source, or the old one again, and what else is not None or empty.

        An empty runtime is one that is given, too: the registry's choice.
        """
        request = pb.UpdateModelRequest(
            id=model_id, source=source, base=base, image_defaults=image_defaults, runtime=runtime, engine=engine
        )
        if loras is not None:
            request.loras.CopyFrom(pb.LoraList(loras=loras))
        if aliases is not None:
            request.aliases.CopyFrom(pb.AliasList(names=aliases))
        with told():
            return self._stub.UpdateModel(request, timeout=INSPECT_SECONDS).model

    def get(self, model_id: str) -> pb.GetModelResponse:
        """A model and its manifest."""
        with told():
            return self._stub.GetModel(pb.GetModelRequest(id=model_id), timeout=ANSWER_SECONDS)

    def models(self) -> pb.ListModelsResponse:
        """All models, by id."""
        with told():
            return self._stub.ListModels(pb.ListModelsRequest(), timeout=ANSWER_SECONDS)

    def remove(self, model_id: str) -> None:
        """Forgets a model."""
        with told():
            self._stub.DeleteModel(pb.DeleteModelRequest(id=model_id), timeout=ANSWER_SECONDS)

    def load(self, model_id: str, runtime: str = "") -> model_pb2.Model:
        """Wants a model in memory."""
        with told():
            return self._stub.LoadModel(pb.LoadModelRequest(id=model_id, runtime=runtime), timeout=ANSWER_SECONDS).model

    def unload(self, model_id: str) -> model_pb2.Model:
        """Gives a model's memory back."""
        with told():
            return self._stub.UnloadModel(pb.UnloadModelRequest(id=model_id), timeout=ANSWER_SECONDS).model

    def explain(self, model_id: str) -> pb.ExplainModelResponse:
        """How every replica resolves a model."""
        with told():
            return self._stub.ExplainModel(pb.ExplainModelRequest(id=model_id), timeout=ANSWER_SECONDS)

    def record(self, model_id: str, benchmark: model_pb2.Benchmark) -> None:
        """Records a measurement."""
        with told():
            self._stub.RecordBenchmark(
                pb.RecordBenchmarkRequest(id=model_id, benchmark=benchmark), timeout=ANSWER_SECONDS
            )

    def snapshot(self) -> list[manifest_pb2.DesiredModel]:
        """All models with everything that the services are told of them, and their replicas, by id."""
        found = []
        for event in self._events(ANSWER_SECONDS, statuses=True):
            if event.HasField("synced"):
                break
            found.append(event.changed)
        return sorted(found, key=lambda desired: desired.model.id)

    def follow(self, model_id: str, seconds: float | None = None) -> Generator[model_pb2.Model, None, None]:
        """A model now and whenever it changes, for ever. A catalog that is started again meanwhile is waited for.

        Raises:
            Problem: the model was removed.
            Late: so many seconds have passed.
            Lost: the catalog has been away for too long.
        """
        end = None if seconds is None else time.monotonic() + seconds
        away: float | None = None  # since when
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            problem: Problem = Lost("the catalog does not answer at the moment")
            try:
                for model in self._follow_once(model_id, left):
                    away = None
                    yield model
            except Lost as lost:
                problem = lost
            away = away or time.monotonic()
            if time.monotonic() - away > AWAY_SECONDS:
                raise problem
            time.sleep(RETRY_SECONDS)

    def _follow_once(self, model_id: str, seconds: float | None) -> Iterator[model_pb2.Model]:
        seen = False
        for event in self._events(seconds, statuses=True):
            if event.HasField("changed") and event.changed.model.id == model_id:
                seen = True
                yield event.changed.model
            if event.removed_id == model_id or (event.HasField("synced") and not seen):
                raise Problem(f"{model_id} was removed")

    def _events(self, seconds: float | None, *, statuses: bool) -> Iterator[pb.WatchModelsResponse]:
        with told():
            call = self._stub.WatchModels(pb.WatchModelsRequest(statuses=statuses), timeout=seconds)
            try:
                yield from call
            finally:
                call.cancel()
