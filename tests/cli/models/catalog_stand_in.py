"""Scripted catalog, chat and audio services in the test's own process, and the commands that call them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from allm.audio.v1 import transcription_service_pb2, transcription_service_pb2_grpc
from allm.models.v1 import manifest_pb2, model_pb2, model_service_pb2_grpc
from allm.models.v1 import model_service_pb2 as pb
from allm.text.v1 import chat_pb2, chat_service_pb2, chat_service_pb2_grpc
from google.rpc import error_details_pb2, status_pb2
from typer.testing import CliRunner

from services.cli.models.app import models_app
from tests.stack import environment

MIB = 1024 * 1024
LONG = 30.0  # seconds: only a failing test waits this long


@dataclass
class Refusal(Exception):
    """An error as the catalog's own servicers send it."""

    code: grpc.StatusCode
    message: str


@dataclass
class Break(Exception):
    """A broken connection to the catalog, as after a kill."""


def replica(state: str, name: str = "text", **fields: Any) -> model_pb2.ReplicaStatus:
    """Returns the status of one replica."""
    defaults = {"generation": 1, "device": "cpu", "runtime": "llama_cpp" if state in ("ready", "loaded") else ""}
    return model_pb2.ReplicaStatus(replica=name, state=_state(state), **{**defaults, **fields})


def desired(model_id: str, state: str = "ready", **fields: Any) -> manifest_pb2.DesiredModel:
    """Returns a registered GGUF model of 138 MiB."""
    defaults: dict[str, Any] = {
        "modality": model_pb2.MODALITY_TEXT,
        "format": model_pb2.FORMAT_GGUF,
        "architecture": "llama",
        "capabilities": ["chat"],
        "size_bytes": 138 * MIB,
        "context_tokens": 2048,
        "generation": 1,
        "source": f"hf://org/{model_id}#m.gguf",
        "revision": "c0ffee",
        "runtime": "llama_cpp" if state in ("ready", "loaded") else "",
    }
    files = [manifest_pb2.ManifestFile(path="m.gguf", size_bytes=138 * MIB, sha256="ab" * 32)]
    return manifest_pb2.DesiredModel(
        model=model_pb2.Model(id=model_id, state=_state(state), **{**defaults, **fields}),
        manifest=manifest_pb2.Manifest(repository=f"org/{model_id}", revision="c0ffee", files=files, primary="m.gguf"),
    )


class CatalogStandIn(
    model_service_pb2_grpc.ModelServiceServicer,
    chat_service_pb2_grpc.ChatServiceServicer,
    transcription_service_pb2_grpc.TranscriptionServiceServicer,
):
    """A catalog with `models`; `story` lists the events that a watcher receives next."""

    def __init__(self, *models: manifest_pb2.DesiredModel) -> None:
        self.models = {each.model.id: each for each in models}
        self.story: list[manifest_pb2.DesiredModel | Break | str] = []  # a string: the id of a removed model
        self.refuse: dict[str, Refusal | Break] = {}  # by RPC name
        self.calls: list[tuple[str, Any]] = []
        self.resolutions: list[pb.Resolution] = []
        self.models_file: pb.ModelsFile | None = None
        self.runtimes: dict[str, tuple[str, int]] = {}  # runtime: device and peak memory after a load
        self.token_seconds = 0.002
        self.spoken = "one two three"  # the transcript of any recording
        self.told_all = threading.Event()  # set at the end of the story

    def requests(self, name: str) -> list[Any]:
        """Returns the requests of one RPC."""
        return [request for called, request in self.calls if called == name]

    def RegisterModel(self, request: pb.RegisterModelRequest, context: Any) -> pb.RegisterModelResponse:  # noqa: N802
        self._note("RegisterModel", request, context)
        if request.id in self.models:
            _abort(context, Refusal(grpc.StatusCode.ALREADY_EXISTS, f"the id {request.id!r} is taken"))
        self.models[request.id] = desired(request.id, "pending", source=request.source, aliases=request.aliases)
        return pb.RegisterModelResponse(model=self.models[request.id].model)

    def FindSource(self, request: pb.FindSourceRequest, context: Any) -> pb.FindSourceResponse:  # noqa: N802
        self._note("FindSource", request, context)
        return pb.FindSourceResponse(source="hf://org/M-GGUF#M-Q8_0.gguf", format="gguf", id="found")

    def UpdateModel(self, request: pb.UpdateModelRequest, context: Any) -> pb.UpdateModelResponse:  # noqa: N802
        self._note("UpdateModel", request, context)
        model = self._find(request.id, context).model
        if request.source and request.source != model.source:
            model.source = request.source
            model.generation += 1
        return pb.UpdateModelResponse(model=model)

    def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:  # noqa: N802
        self._note("GetModel", request, context)
        found = self._find(request.id, context)
        return pb.GetModelResponse(model=found.model, manifest=found.manifest)

    def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:  # noqa: N802
        self._note("ListModels", request, context)
        models = [each.model for _, each in sorted(self.models.items())]
        return pb.ListModelsResponse(models=models, models_file=self.models_file)

    def DeleteModel(self, request: pb.DeleteModelRequest, context: Any) -> pb.DeleteModelResponse:  # noqa: N802
        self._note("DeleteModel", request, context)
        del self.models[self._find(request.id, context).model.id]
        return pb.DeleteModelResponse()

    def LoadModel(self, request: pb.LoadModelRequest, context: Any) -> pb.LoadModelResponse:  # noqa: N802
        self._note("LoadModel", request, context)
        found = self._find(request.id, context)
        found.runtime, found.model.keep_loaded = request.runtime, True
        if request.runtime in self.runtimes:
            device, peak = self.runtimes[request.runtime]
            del found.model.replicas[:]
            found.model.replicas.append(
                replica("loaded", runtime=request.runtime, device=device, peak_memory_bytes=peak)
            )
        return pb.LoadModelResponse(model=found.model)

    def UnloadModel(self, request: pb.UnloadModelRequest, context: Any) -> pb.UnloadModelResponse:  # noqa: N802
        self._note("UnloadModel", request, context)
        found = self._find(request.id, context)
        found.model.keep_loaded = False
        return pb.UnloadModelResponse(model=found.model)

    def ExplainModel(self, request: pb.ExplainModelRequest, context: Any) -> pb.ExplainModelResponse:  # noqa: N802
        self._note("ExplainModel", request, context)
        return pb.ExplainModelResponse(model=self._find(request.id, context).model, resolutions=self.resolutions)

    def RecordBenchmark(self, request: Any, context: Any) -> pb.RecordBenchmarkResponse:  # noqa: N802
        self._note("RecordBenchmark", request, context)
        return pb.RecordBenchmarkResponse()

    def ReportModelStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "no service reports here")

    def WatchModels(self, request: pb.WatchModelsRequest, context: Any) -> Iterator[pb.WatchModelsResponse]:  # noqa: N802
        self._note("WatchModels", request, context)
        for _, each in sorted(self.models.items()):
            yield pb.WatchModelsResponse(changed=each)
        yield pb.WatchModelsResponse(synced=pb.Synced())
        while self.story and request.statuses:
            event = self.story.pop(0)
            if isinstance(event, Break):
                _abort(context, event)
            elif isinstance(event, str):
                del self.models[event]
                yield pb.WatchModelsResponse(removed_id=event)
            else:
                self.models[event.model.id] = event
                yield pb.WatchModelsResponse(changed=event)
        ended = threading.Event()
        context.add_callback(ended.set)
        self.told_all.set()
        ended.wait(LONG)

    def CreateChatCompletion(self, request: Any, context: Any) -> Any:  # noqa: N802
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "only streams")

    def StreamChatCompletion(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self._note("StreamChatCompletion", request, context)
        event = chat_service_pb2.StreamChatCompletionResponse
        yield event(started=chat_service_pb2.ChatStarted(model=request.model))
        for number in range(request.sampling.max_tokens):
            time.sleep(self.token_seconds)
            yield event(delta=chat_service_pb2.ChatDelta(text=f"{number} "))
        usage = chat_pb2.Usage(prompt_tokens=100, completion_tokens=request.sampling.max_tokens)
        yield event(finished=chat_service_pb2.ChatFinished(usage=usage))

    def Transcribe(self, request: Iterator[Any], context: Any) -> Any:  # noqa: N802
        self._note("Transcribe", list(request), context)
        words = self.spoken.split()
        time.sleep(self.token_seconds * len(words))
        answer = transcription_service_pb2.TranscribeResponse()
        answer.transcript.text, answer.transcript.tokens = self.spoken, len(words)
        return answer

    def StreamTranscribe(self, request: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        self._note("StreamTranscribe", list(request), context)
        event = transcription_service_pb2.StreamTranscribeResponse
        yield event(started=transcription_service_pb2.TranscriptionStarted(model="w"))
        for word in self.spoken.split():
            time.sleep(self.token_seconds)
            yield event(partial=transcription_service_pb2.PartialText(text=word))
        yield event(finished=transcription_service_pb2.TranscriptionFinished())

    def _note(self, name: str, request: Any, context: Any) -> None:
        self.calls.append((name, request))
        if refusal := self.refuse.get(name):
            _abort(context, refusal)

    def _find(self, model_id: str, context: Any) -> manifest_pb2.DesiredModel:
        for each in self.models.values():
            if model_id in (each.model.id, *each.model.aliases):
                return each
        _abort(context, Refusal(grpc.StatusCode.NOT_FOUND, f"there is no model {model_id!r}"))
        raise AssertionError


@dataclass
class Done:
    """A command that has ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


@dataclass
class Commands:
    """The `allm models` command with the address of a stand-in."""

    catalog: CatalogStandIn
    address: str
    home: Path

    def __call__(self, *arguments: str, environ: dict[str, str] | None = None) -> Done:
        return allm_models(self.home, *arguments, "--address", self.address, **(environ or {}))


def allm_models(home: Path, *arguments: str, **settings: str) -> Done:
    """Runs a command in this process; any exception except an exit status fails the test."""
    environ = {**environment(home), "COLUMNS": "120", "NO_COLOR": "1", **settings}
    done = CliRunner().invoke(models_app, arguments, env=environ, catch_exceptions=False)
    assert "Traceback" not in done.stderr
    return Done(done.exit_code, done.stdout, done.stderr)


@contextmanager
def running(catalog: CatalogStandIn) -> Iterator[str]:
    """Serves `catalog`; yields its address."""
    server = grpc.server(futures.ThreadPoolExecutor(8))
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(catalog, server)
    chat_service_pb2_grpc.add_ChatServiceServicer_to_server(catalog, server)
    transcription_service_pb2_grpc.add_TranscriptionServiceServicer_to_server(catalog, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait(LONG)


def wait_for(what: Callable[[], bool]) -> None:
    """Waits until the condition holds; fails after LONG seconds."""
    deadline = time.monotonic() + LONG
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _state(word: str) -> model_pb2.ModelState.ValueType:
    return model_pb2.ModelState.Value(f"MODEL_STATE_{word.upper()}")


def _abort(context: Any, refusal: Refusal | Break) -> None:
    if isinstance(refusal, Break):  # as Envoy answers then
        context.abort(grpc.StatusCode.UNAVAILABLE, "no healthy upstream")
        return
    status = status_pb2.Status(code=refusal.code.value[0], message=refusal.message)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="TEST", domain="allm"))
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(refusal.code, refusal.message)
