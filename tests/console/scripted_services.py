"""A scripted text service and catalog behind a real Envoy, for behaviour that the demo models never show."""

from __future__ import annotations

import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from allm.models.v1 import (
    machine_service_pb2,
    machine_service_pb2_grpc,
    manifest_pb2,
    model_pb2,
    model_service_pb2,
    model_service_pb2_grpc,
)
from allm.text.v1 import chat_pb2, chat_service_pb2, chat_service_pb2_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from gateway.process import envoy_command
from gateway.render import Gateway, write_config
from services.errors import AllmError
from services.rpc.call import DETAILS, typed_details
from services.settings.gateway_settings import GatewaySettings
from tests.ports import free_port
from tests.stack import POLL_SECONDS

MODEL = "scripted"
REQUEST_ID = "00000000-0000-4000-8000-000000000000"
LOADING = (
    ("speech", model_pb2.MODALITY_AUDIO, "transcription"),
    ("images", model_pb2.MODALITY_IMAGE, "image"),
)
START_SECONDS = 60
# Envoy pings every ten seconds, also on idle connections.
PATIENT = (("grpc.http2.max_ping_strikes", 0), ("grpc.keepalive_permit_without_calls", 1))
SAMPLE_SECONDS = 0.5
WATCH_SECONDS = 60
Event = chat_service_pb2.StreamChatCompletionResponse
MachineEvent = machine_service_pb2.WatchMachineResponse


class ScriptedChat(chat_service_pb2_grpc.ChatServiceServicer):
    """Answers every message with `deltas` and, once `go_on` is set, with its end or with `error`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Returns to the initial state: empty answers, without a pause."""
        self.deltas: list[chat_service_pb2.ChatDelta] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.error: AllmError | None = None
        self.asked: list[chat_service_pb2.StreamChatCompletionRequest] = []

    def StreamChatCompletion(  # noqa: N802
        self, request: chat_service_pb2.StreamChatCompletionRequest, context: grpc.ServicerContext
    ) -> Iterator[Event]:
        self.asked.append(request)
        if self.deltas:
            yield Event(started=chat_service_pb2.ChatStarted(id="chatcmpl-1", model=MODEL))
        for delta in self.deltas:
            yield Event(delta=delta)
        go_on = self.go_on
        while context.is_active() and not go_on.wait(POLL_SECONDS):
            pass
        if self.error:
            refuse(context, self.error)
        usage = chat_pb2.Usage(prompt_tokens=1, completion_tokens=2)
        reason = chat_pb2.FINISH_REASON_STOP
        yield Event(finished=chat_service_pb2.ChatFinished(finish_reason=reason, usage=usage))


class ScriptedCatalog(model_service_pb2_grpc.ModelServiceServicer):
    """Lists one model that chats, in `state`, and one that cannot; and the models in `others`, which chat as well;
    and one model of speech and one of images, which load forever.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Returns to the initial state."""
        self.state = model_pb2.MODEL_STATE_READY
        self.context_tokens = 0
        self.others: list[model_pb2.Model] = []

    def WatchModels(  # noqa: N802
        self, request: model_service_pb2.WatchModelsRequest, context: grpc.ServicerContext
    ) -> Iterator[model_service_pb2.WatchModelsResponse]:
        ready = model_pb2.Model(id=MODEL, state=self.state, context_tokens=self.context_tokens)
        canonical = model_pb2.CanonicalFiles(
            state=model_pb2.MODEL_STATE_DOWNLOADING, done_bytes=2 * 1024**3, total_bytes=13 * 1024**3
        )
        ready.replicas.add(replica="text-0", device="cuda", artifact="openai/model-onnx@main", canonical=canonical)
        failed = model_pb2.Model(id="broken", state=model_pb2.MODEL_STATE_FAILED, reason="its file is cut off")
        for model in (ready, failed, *self.others):
            model.modality = model_pb2.MODALITY_TEXT
            model.capabilities[:] = sorted({"chat", *model.capabilities})
            yield model_service_pb2.WatchModelsResponse(changed=manifest_pb2.DesiredModel(model=model))
        for model_id, modality, capability in LOADING:
            model = model_pb2.Model(id=model_id, state=model_pb2.MODEL_STATE_READY, modality=modality)
            model.capabilities.append(capability)
            model.replicas.add(replica=f"{model_id}-0", memory=model_pb2.MemoryStatus(loading=True))
            yield model_service_pb2.WatchModelsResponse(changed=manifest_pb2.DesiredModel(model=model))
        yield model_service_pb2.WatchModelsResponse(synced=model_service_pb2.Synced())
        ended = threading.Event()
        if context.add_callback(ended.set):
            ended.wait()  # each watch blocks a thread until its client leaves


class ScriptedMachine(machine_service_pb2_grpc.MachineServiceServicer):
    """Sends `past` to watches that request history, and then `now` repeatedly, with the current time."""

    def __init__(self) -> None:
        self.reset()
        self._watches: set[threading.Event] = set()  # each is set to end its watch
        self._changed = threading.Condition()

    def reset(self) -> None:
        """Returns to the initial state: no past, and samples without content."""
        self.past: list[machine_service_pb2.MachineSample] = []
        self.now = machine_service_pb2.MachineSample()
        self.error: AllmError | None = None

    def WatchMachine(  # noqa: N802
        self, request: machine_service_pb2.WatchMachineRequest, context: grpc.ServicerContext
    ) -> Iterator[MachineEvent]:
        if self.error:
            refuse(context, self.error)
        if request.HasField("history"):
            for sample in self.past:
                yield MachineEvent(sample=sample)
        synced = machine_service_pb2.MachineSynced()
        synced.interval.FromMilliseconds(round(SAMPLE_SECONDS * 1000))
        yield MachineEvent(synced=synced)
        ended = threading.Event()
        with self._changed:
            self._watches.add(ended)
            self._changed.notify_all()
        try:
            while context.is_active() and not ended.is_set():
                reported = machine_service_pb2.MachineSample()
                reported.CopyFrom(self.now)
                reported.time.GetCurrentTime()
                yield MachineEvent(sample=reported)
                ended.wait(SAMPLE_SECONDS)
        finally:
            with self._changed:
                self._watches.discard(ended)
                self._changed.notify_all()

    def hang_up(self) -> None:
        """Ends all watches."""
        with self._changed:
            for watch in self._watches:
                watch.set()

    def wait_watched(self, times: int) -> None:
        """Waits until this many watches are open."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._watches) == times, WATCH_SECONDS), len(self._watches)


def refuse(context: grpc.ServicerContext, error: AllmError) -> None:
    """Aborts a call as the services do."""
    context.set_trailing_metadata(((DETAILS, typed_details(error, REQUEST_ID)),))
    context.abort(error.grpc_status, error.message)


@dataclass(frozen=True)
class Scripted:
    """A gateway on `port`, with the scripted services behind it."""

    port: int
    chat: ScriptedChat = field(default_factory=ScriptedChat)
    machine: ScriptedMachine = field(default_factory=ScriptedMachine)
    catalog: ScriptedCatalog = field(default_factory=ScriptedCatalog)

    def reset(self) -> None:
        """Returns all services to their initial state."""
        self.chat.reset()
        self.machine.reset()
        self.catalog.reset()


@contextmanager
def scripted_gateway() -> Iterator[Scripted]:
    """Runs the scripted services and the gateway."""
    scripted = Scripted(free_port())
    with tempfile.TemporaryDirectory(prefix="allm-console-") as name, ThreadPoolExecutor(16) as pool:
        folder = Path(name)
        server = grpc.server(pool, options=PATIENT)
        chat_service_pb2_grpc.add_ChatServiceServicer_to_server(scripted.chat, server)
        machine_service_pb2_grpc.add_MachineServiceServicer_to_server(scripted.machine, server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(scripted.catalog, server)
        checks = health.HealthServicer()
        checks.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        address = f"unix:{folder / 'service.sock'}"
        server.add_insecure_port(address)
        server.start()
        settings = GatewaySettings("127.0.0.1", scripted.port, (), (), 1024 * 1024)
        config = write_config(Gateway(settings, (address,), address, f"unix:{folder / 'admin.sock'}", folder))
        envoy = subprocess.Popen(envoy_command(config, cores=1), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_healthy(scripted.port, envoy)
            yield scripted
        finally:
            envoy.terminate()
            envoy.wait()
            server.stop(None).wait()


def wait_healthy(port: int, envoy: subprocess.Popen[bytes]) -> None:
    waiter = threading.Event()
    for _ in range(round(START_SECONDS / POLL_SECONDS)):
        assert envoy.poll() is None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as reply:
                if reply.status == 200:
                    return
        except OSError:  # refused, or not healthy yet
            waiter.wait(POLL_SECONDS)
    raise AssertionError("the gateway is not healthy")
