"""The commands' client of the catalog: one method per call, with its time limit and with errors as sentences.

A command's session holds one, with the connection and the settings of the environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from allm.models.v1 import manifest_pb2, model_pb2
from allm.models.v1 import model_service_pb2 as pb

from services.cli.models.connection import (
    Connection,
    Lost,
    catalog_address,
    command_identity,
    connect,
    find_address,
    read_note,
    readable_errors,
    warning,
)
from services.cli.models.page import Page
from services.cli.problem import Problem, plainly
from services.settings.settings import Settings, load_settings

ANSWER_SECONDS = 30.0
INSPECT_SECONDS = 600.0  # the catalog lists files and reads their headers, possibly over a slow network
AWAY_SECONDS = 60.0  # how long a restarting catalog may be down while its models are watched
RETRY_SECONDS = 0.5


class CatalogClient:
    """A client of the catalog. Every method raises CallRefused, Lost or Late (services.cli.models.connection)."""

    def __init__(self, connection: Connection) -> None:
        self._stub = connection.models

    def register(self, request: pb.RegisterModelRequest) -> model_pb2.Model:
        """Registers a model."""
        with readable_errors():
            return self._stub.RegisterModel(request, timeout=INSPECT_SECONDS).model

    def find_source(self, text: str) -> pb.FindSourceResponse:
        """Finds the source that a text means, and the id and format to register it with."""
        with readable_errors():
            return self._stub.FindSource(pb.FindSourceRequest(source=text), timeout=INSPECT_SECONDS)

    def update(self, request: pb.UpdateModelRequest) -> model_pb2.Model:
        """Gives a model a new source, or the old one again, and sets all fields that are given.

        An empty runtime is also a value: the registry's choice.
        """
        with readable_errors():
            return self._stub.UpdateModel(request, timeout=INSPECT_SECONDS).model

    def get(self, model_id: str) -> pb.GetModelResponse:
        """Returns a model and its manifest."""
        with readable_errors():
            return self._stub.GetModel(pb.GetModelRequest(id=model_id), timeout=ANSWER_SECONDS)

    def models(self) -> pb.ListModelsResponse:
        """Returns all models, by id."""
        with readable_errors():
            return self._stub.ListModels(pb.ListModelsRequest(), timeout=ANSWER_SECONDS)

    def remove(self, model_id: str) -> None:
        """Deletes a model."""
        with readable_errors():
            self._stub.DeleteModel(pb.DeleteModelRequest(id=model_id), timeout=ANSWER_SECONDS)

    def load(self, model_id: str, runtime: str = "") -> model_pb2.Model:
        """Asks for a model to be loaded and kept in memory."""
        with readable_errors():
            return self._stub.LoadModel(pb.LoadModelRequest(id=model_id, runtime=runtime), timeout=ANSWER_SECONDS).model

    def unload(self, model_id: str) -> model_pb2.Model:
        """Frees a model's memory."""
        with readable_errors():
            return self._stub.UnloadModel(pb.UnloadModelRequest(id=model_id), timeout=ANSWER_SECONDS).model

    def explain(self, model_id: str) -> pb.ExplainModelResponse:
        """Explains how every replica resolves a model."""
        with readable_errors():
            return self._stub.ExplainModel(pb.ExplainModelRequest(id=model_id), timeout=ANSWER_SECONDS)

    def record(self, model_id: str, benchmark: model_pb2.Benchmark) -> None:
        """Records a measurement."""
        with readable_errors():
            self._stub.RecordBenchmark(
                pb.RecordBenchmarkRequest(id=model_id, benchmark=benchmark), timeout=ANSWER_SECONDS
            )

    def snapshot(self) -> list[manifest_pb2.DesiredModel]:
        """Returns all models as the services receive them, with their replicas, by id."""
        found = []
        for event in self._events(ANSWER_SECONDS, statuses=True):
            if event.HasField("synced"):
                break
            found.append(event.changed)
        return sorted(found, key=lambda desired: desired.model.id)

    def follow(self, model_id: str, seconds: float | None = None) -> Generator[model_pb2.Model, None, None]:
        """Yields a model now and after every change, without end. It waits for a catalog that restarts meanwhile.

        Raises:
            Problem: the model was removed.
            Late: the time limit has passed.
            Lost: the catalog has been down for too long.
        """
        end = None if seconds is None else time.monotonic() + seconds
        away: float | None = None  # since when the catalog has been down
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
        with readable_errors():
            call = self._stub.WatchModels(pb.WatchModelsRequest(statuses=statuses), timeout=seconds)
            try:
                yield from call
            finally:
                call.cancel()


@contextmanager
def restored_afterwards(catalog: CatalogClient, model_id: str, say: Callable[[str], None]) -> Iterator[None]:
    """Restores the operator's choices afterwards: the runtime, and whether the model stays in memory.

    Raises:
        Problem: the model was removed.
    """
    before = _desired(catalog, model_id)
    try:
        yield
    finally:
        say(f"restoring the state of {model_id}")
        if before.model.keep_loaded:
            catalog.load(model_id, before.runtime)
        else:
            catalog.unload(model_id)
            if _desired(catalog, model_id).runtime != before.runtime:
                catalog.load(model_id, before.runtime)
                catalog.unload(model_id)


def _desired(catalog: CatalogClient, model_id: str) -> manifest_pb2.DesiredModel:
    for desired in catalog.snapshot():
        if desired.model.id == model_id:
            return desired
    raise Problem(f"{model_id} was removed")


@dataclass(frozen=True, slots=True)
class Session:
    """A connection with its settings."""

    connection: Connection
    catalog: CatalogClient
    settings: Settings


@contextmanager
def session(address: str) -> Iterator[Session]:
    """Connects to allm at `address`; empty: the local one. Errors end the command with a sentence."""
    with plainly():
        settings = load_settings()
        note = read_note(settings.home)
        where, catalog = find_address(address, settings, note), "" if address else catalog_address("", settings, note)
        own = command_identity(settings, "allm-models")
        with connect(where, own, settings.auth.api_key, catalog) as connection:
            if said := warning(address, settings, note):
                Page(error=True).say(said)
            yield Session(connection, CatalogClient(connection), settings)
