"""The spans of RPCs, with a real server and a collector on loopback."""

from __future__ import annotations

import functools
import io
import json
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import grpc
import pytest
import trustme
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc

from services.errors import Internal, InvalidRequest
from services.rpc import call as call_module
from services.rpc.call import Call, typed
from services.settings.setting import SettingError, read
from services.settings.trace_settings import TraceSettings
from services.telemetry import otlp, tracing
from services.telemetry.logs import JsonFormatter
from services.telemetry.otlp import Clock, SpanQueue
from tests.otlp_collector import Collector, collecting

RPC = "allm.text.v1.ChatService/CreateChatCompletion"
SECRET = "the caller's words"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Script = Callable[[Call], Awaitable[None]]


class Scripted(chat_service_pb2_grpc.ChatServiceServicer):
    """A servicer whose calls run the test's script."""

    script: Script

    @typed(operation="chat")
    async def CreateChatCompletion(self, request, call: Call):  # noqa: N802
        await self.script(call)
        return chat_service_pb2.CreateChatCompletionResponse()

    @typed(quiet=True)
    async def StreamChatCompletion(self, request, call: Call):  # noqa: N802
        await call.send(chat_service_pb2.StreamChatCompletionResponse())


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[chat_service_pb2_grpc.ChatServiceStub]:
    servicer = Scripted()
    servicer.script = script
    server = grpc.aio.server()
    chat_service_pb2_grpc.add_ChatServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield chat_service_pb2_grpc.ChatServiceStub(channel)
    finally:
        await server.stop(None)


async def ask(script: Script, **metadata: str) -> None:
    """Makes one call and ignores its result."""
    async with serving(script) as stub:
        try:
            request = chat_service_pb2.CreateChatCompletionRequest(model=SECRET)
            await stub.CreateChatCompletion(request, metadata=tuple(metadata.items()), timeout=30)
        except grpc.aio.AioRpcError:
            pass


def start(collector: Collector, **environ: str) -> Callable[[float], None]:
    environ = {"ALLM_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}", **environ}
    return tracing.start(read(TraceSettings, environ), "allm-text", "text-1")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends batches immediately."""
    monkeypatch.setattr(otlp, "SpanQueue", functools.partial(SpanQueue, seconds=0.01))


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Yields a collector that receives the traces of this process."""
    with collecting() as found:
        stop = start(found)
        try:
            yield found
        finally:
            stop(10)


async def nothing(call: Call) -> None:
    pass


# --- off


def test_services_without_traces_import_nothing_of_opentelemetry() -> None:
    services = ", ".join(f"services.{name}.__main__" for name in ("text", "audio", "image", "catalog", "authorizer"))
    program = (
        f"import sys, {services}; from services.telemetry import tracing; "
        "from services.settings.trace_settings import NO_TRACES; tracing.start(NO_TRACES, 'a', 'b')(0); "
        "sys.exit(any(name.partition('.')[0] == 'opentelemetry' for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


async def test_without_traces_a_call_has_none() -> None:
    seen: list[object] = []

    async def script(call: Call) -> None:
        seen.extend((call.trace, tracing.current(), tracing.open_span("x", {})))
        with tracing.part("x"):
            tracing.record_phases([("queue", 0.0)], 1.0, {}, "")

    await ask(script)
    assert seen == [None, None, None]


def test_without_the_extra_the_start_says_what_to_install() -> None:
    """`otlp.py` is imported in a process without OpenTelemetry."""
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from services.rpc.server import run\n"
        "async def build(server, settings): raise AssertionError\n"
        "run(build)"
    )
    environ = {"ALLM_OTLP_ENDPOINT": "http://127.0.0.1:1", "ALLM_HOME": "/nonexistent", "PATH": "/bin"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 2
    assert "ALLM_OTLP_ENDPOINT" in done.stderr
    assert "pip install 'allm-server[traces]'" in done.stderr
    assert "Traceback" not in done.stderr


# --- on


async def test_a_call_is_a_span_with_the_names_of_the_conventions(collector: Collector) -> None:
    async def script(call: Call) -> None:
        call.model = "m"

    await ask(script, **{"x-request-id": "id-1", "x-client-id": "team-a"})
    span = collector.trace("id-1", RPC).one(RPC)
    assert span.parent_id == ""
    assert (span.service, span.resource["service.instance.id"]) == ("allm-text", "text-1")
    assert span.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": RPC,
        "rpc.response.status_code": "OK",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "allm",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "allm.request_id": "id-1",
        "allm.client": "team-a",
    }


@pytest.mark.parametrize(
    ("error", "status", "code", "failed"),
    [
        (InvalidRequest(SECRET), "INVALID_ARGUMENT", "INVALID_REQUEST", False),
        (Internal(SECRET), "INTERNAL", "INTERNAL", True),
        (RuntimeError(SECRET), "INTERNAL", "INTERNAL", True),
    ],
)
async def test_error_is_recorded_by_its_code_without_its_message(
    collector: Collector, error: Exception, status: str, code: str, failed: bool
) -> None:
    async def script(call: Call) -> None:
        raise error

    await ask(script, **{"x-request-id": "id-2"})
    span = collector.trace("id-2", RPC).one(RPC)
    assert span.attributes["rpc.response.status_code"] == status
    assert (span.attributes["error.type"], span.failed) == (code, failed)
    assert SECRET not in span.text


async def test_a_span_goes_below_the_one_that_the_gateway_names(collector: Collector) -> None:
    await ask(nothing, traceparent=PARENT, **{"x-request-id": "id-3"})
    span = collector.trace("id-3", RPC).one(RPC)
    assert [span.trace_id, span.parent_id] == PARENT.split("-")[1:3]


async def test_unsampled_traces_of_the_gateway_are_not_recorded(collector: Collector) -> None:
    await ask(nothing, traceparent=PARENT.removesuffix("01") + "00", **{"x-request-id": "id-4"})
    await ask(nothing, traceparent="no such thing", **{"x-request-id": "id-5"})
    collector.trace("id-5", RPC)  # arrived later, and alone
    assert [span.attributes["allm.request_id"] for span in collector.spans] == ["id-5"]


async def test_phases_lie_one_after_the_other_below_their_call(collector: Collector) -> None:
    async def script(call: Call) -> None:
        at = call.started
        first = [("queue", at), ("prefill", at + 1), ("decode", at + 3)]
        counts = {tracing.INPUT_TOKENS: 7, tracing.OUTPUT_TOKENS: 2}
        tracing.record_phases(first, at + 6, counts, "")
        tracing.record_phases([("queue", at)], at + 1, counts, "OVERLOADED")

    await ask(script, **{"x-request-id": "id-6"})
    trace = collector.trace("id-6", RPC, "decode")
    call = trace.one(RPC)
    *others, queue = sorted(trace.all("queue"), key=lambda span: "error.type" in span.attributes)
    phases = [*others, trace.one("prefill"), trace.one("decode")]
    assert [trace.parent(span) for span in (*phases, queue)] == [call] * 4
    assert [span.started for span in phases] == [call.started, *(span.ended for span in phases[:-1])]
    assert [round((span.ended - span.started) / 1e9, 6) for span in phases] == [1, 2, 3]
    assert queue.attributes["error.type"] == "OVERLOADED"
    assert phases[-1].attributes == {tracing.INPUT_TOKENS: 7, tracing.OUTPUT_TOKENS: 2}
    # Both answers read the same prompt.
    assert (call.attributes[tracing.INPUT_TOKENS], call.attributes[tracing.OUTPUT_TOKENS]) == (7, 4)


async def test_a_part_records_its_outcome(collector: Collector) -> None:
    async def script(call: Call) -> None:
        with tracing.part("good"):
            pass
        with tracing.part("bad"):
            raise InvalidRequest(SECRET)

    await ask(script, **{"x-request-id": "id-7"})
    trace = collector.trace("id-7", RPC, "good", "bad")
    assert trace.one("good").attributes == {}
    assert trace.one("bad").attributes == {"error.type": "INVALID_REQUEST"}
    assert all(trace.parent(trace.one(name)) == trace.one(RPC) for name in ("good", "bad"))


async def test_load_without_a_request_has_its_own_trace_with_links(collector: Collector) -> None:
    load = tracing.open_span("load", {"gen_ai.request.model": "m"})
    assert load

    async def script(call: Call) -> None:
        with tracing.part("wait for load", load):
            pass

    await ask(script, **{"x-request-id": "id-8"})
    load.end(time.monotonic())
    root = collector.wait(lambda spans: [span for span in spans if span.name == "load"])[0]
    waiting = collector.trace("id-8", "wait for load").one("wait for load")
    assert (root.parent_id, waiting.links) == ("", [root.span_id])
    assert root.trace_id != waiting.trace_id


async def test_log_lines_of_a_call_have_its_trace(collector: Collector) -> None:
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(JsonFormatter())
    call_module.log.addHandler(handler)
    level = call_module.log.level
    call_module.log.setLevel(logging.INFO)
    try:
        await ask(nothing, **{"x-request-id": "id-9"})
    finally:
        call_module.log.removeHandler(handler)
        call_module.log.setLevel(level)
    (line,) = map(json.loads, log.getvalue().splitlines())
    assert line["trace_id"] == collector.trace("id-9", RPC).one(RPC).trace_id


async def test_heartbeats_make_no_traces(collector: Collector) -> None:
    async with serving(nothing) as stub:
        async for _ in stub.StreamChatCompletion(chat_service_pb2.StreamChatCompletionRequest()):
            pass
    await ask(nothing, **{"x-request-id": "id-10"})
    collector.trace("id-10", RPC)
    assert [span.name for span in collector.spans] == [RPC]


async def test_only_a_share_is_recorded() -> None:
    with collecting() as collector:
        stop = start(collector, ALLM_TRACE_SAMPLING="0")
        await ask(nothing)
        await ask(nothing, traceparent=PARENT)
        stop(10)
        assert [span.parent_id for span in collector.spans] == [PARENT.split("-")[2]]


async def test_calls_do_not_wait_for_a_collector_that_is_away() -> None:
    with collecting() as gone:
        pass
    stop = start(gone)
    for _ in range(20):
        await ask(nothing)
    stop(0.2)
    assert tracing.tracer is None


async def test_headers_and_certificates_reach_the_collector(tmp_path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    credentials = grpc.ssl_server_credentials(
        [(certificate.private_key_pem.bytes(), b"".join(part.bytes() for part in certificate.cert_chain_pems))]
    )
    with collecting(credentials) as collector:
        environ = {
            "ALLM_OTLP_ENDPOINT": f"https://localhost:{collector.port}",
            "ALLM_OTLP_CA_FILE": str(tmp_path / "ca.pem"),
            "ALLM_OTLP_HEADERS": "authorization=Bearer t",
        }
        stop = start(collector, **environ)
        await ask(nothing)
        stop(10)
        assert len(collector.spans) == 1
        assert collector.metadata[0]["authorization"] == "Bearer t"


def test_a_missing_certificate_file_is_named() -> None:
    environ = {"ALLM_OTLP_ENDPOINT": "https://localhost:1", "ALLM_OTLP_CA_FILE": "/nonexistent/ca.pem"}
    with pytest.raises(SettingError, match="ALLM_OTLP_CA_FILE"):
        tracing.start(read(TraceSettings, environ), "allm-text", "text-1")
    assert tracing.tracer is None


def test_monotonic_times_become_wall_times_that_keep_their_distances() -> None:
    clock = Clock()
    before, at, after = time.time_ns(), time.monotonic(), time.time_ns()
    slack = 50_000_000
    assert before - slack < clock.wall(at) < after + slack
    assert clock.wall(at + 1.5) - clock.wall(at) == 1_500_000_000
