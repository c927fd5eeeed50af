"""gRPC and gRPC-Web through the port that serves REST."""

from __future__ import annotations

import base64
import struct
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from allm.models.v1 import model_service_pb2, model_service_pb2_grpc
from allm.openai.v1 import models_service_pb2, models_service_pb2_grpc
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.case import case
from tests.gateway.envoy_process import RunningGateway
from tests.gateway.scripted_catalog import ScriptedCatalog
from tests.gateway.upstream import Upstream
from tests.gateway.wire import send

pytestmark = pytest.mark.asyncio(loop_scope="session")
STREAM = "/allm.text.v1.ChatService/StreamChatCompletion"
REPORT = "/allm.models.v1.ModelService/ReportModelStatus"


@pytest_asyncio.fixture(loop_scope="session")
async def channel(
    gateway: RunningGateway, upstream: Upstream, catalog: ScriptedCatalog
) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
        yield channel


async def test_unary_call(channel: grpc.aio.Channel, catalog: ScriptedCatalog) -> None:
    stub = model_service_pb2_grpc.ModelServiceStub(channel)
    reply = await stub.ListModels(
        model_service_pb2.ListModelsRequest(), metadata=(("x-client-id", "root"), ("x-envoy-original-path", "/x"))
    )
    assert [model.id for model in reply.models] == ["org/scripted"]
    assert catalog.metadata[0]["x-client-id"] == "anonymous"
    assert "x-envoy-original-path" not in catalog.metadata[0]


async def test_stream(channel: grpc.aio.Channel) -> None:
    stub = chat_service_pb2_grpc.ChatServiceStub(channel)
    request = chat_service_pb2.StreamChatCompletionRequest(model="m")
    events = [event.WhichOneof("event") async for event in stub.StreamChatCompletion(request)]
    assert events == ["started", "delta", "delta", "finished"]


async def test_an_error_is_a_status_and_not_json(channel: grpc.aio.Channel) -> None:
    stub = chat_service_pb2_grpc.ChatServiceStub(channel)
    call = stub.StreamChatCompletion(chat_service_pb2.StreamChatCompletionRequest(model="nothing"))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in call:
            pass
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.NOT_FOUND, "no such model")


async def test_health(channel: grpc.aio.Channel) -> None:
    reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_each_service_gets_its_own(
    channel: grpc.aio.Channel, upstream: Upstream, catalog: ScriptedCatalog
) -> None:
    models = model_service_pb2_grpc.ModelServiceStub(channel)
    async for event in models.WatchModels(model_service_pb2.WatchModelsRequest()):
        assert event.WhichOneof("event") == "synced"
    facade = models_service_pb2_grpc.ModelsServiceStub(channel)
    assert (await facade.ListModels(models_service_pb2.ListModelsRequest())).data
    assert (len(catalog.metadata), len(upstream.metadata)) == (2, 0)
    chat = chat_service_pb2_grpc.ChatServiceStub(channel)
    async for _ in chat.StreamChatCompletion(chat_service_pb2.StreamChatCompletionRequest(model="m")):
        pass
    assert (len(catalog.metadata), len(upstream.metadata)) == (2, 1)


async def test_clients_cannot_report_statuses(channel: grpc.aio.Channel, catalog: ScriptedCatalog) -> None:
    stub = model_service_pb2_grpc.ModelServiceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.ReportModelStatus(model_service_pb2.ReportModelStatusRequest(replica="text-1"))
    assert raised.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert "ReportModelStatus" in raised.value.details()
    assert not catalog.metadata


async def test_no_spelling_of_the_path_passes(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    for path in [REPORT, f"{REPORT}?x=1", REPORT.replace("Rep", "%52ep"), REPORT.replace("/R", "/./R")]:
        for kind in ["application/grpc", "application/grpc-web+proto", "application/grpc-web-text"]:
            with case(path=path, kind=kind):
                body = bytes(5)
                headers = {"content-type": kind, "x-grpc-web": "1"}
                reply = await send(
                    gateway.port, "POST", path, headers, base64.b64encode(body) if "text" in kind else body
                )
                assert reply.headers["grpc-status"] == str(grpc.StatusCode.PERMISSION_DENIED.value[0])
                assert reply.status == (403 if "web" in kind else 200)
                assert not catalog.metadata


@pytest.mark.parametrize("path", [REPORT.replace("/R", "//R"), REPORT.replace("/R", "%2FR")])
async def test_similar_paths_do_not_pass(gateway: RunningGateway, catalog: ScriptedCatalog, path: str) -> None:
    reply = await send(gateway.port, "POST", path, {"content-type": "application/grpc"}, bytes(5))
    assert reply.headers["grpc-status"] != "0"
    assert not catalog.requests


async def test_services_that_are_not_routed(channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary("/other.v1.Service/Method")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call(b"")
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_the_host_is_checked_for_grpc_too(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    options = [("grpc.default_authority", "evil.example")]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}", options=options) as channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.ListModels(model_service_pb2.ListModelsRequest())
    assert raised.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert not catalog.metadata


def frames(body: bytes) -> list[tuple[int, bytes]]:
    """Splits a gRPC-Web body into frames: flags and payload. Flag 0x80 marks the trailers."""
    found = []
    while body:
        flags, length = struct.unpack(">BI", body[:5])
        found.append((flags, body[5 : 5 + length]))
        body = body[5 + length :]
    return found


def decode_groups(body: bytes) -> bytes:
    """Decodes base64 whose parts are padded separately."""
    return b"".join(base64.b64decode(body[start : start + 4]) for start in range(0, len(body), 4))


@pytest.mark.parametrize("text", [False, True])
async def test_grpc_web(gateway: RunningGateway, upstream: Upstream, text: bool) -> None:
    message = chat_service_pb2.StreamChatCompletionRequest(model="m").SerializeToString()
    body = struct.pack(">BI", 0, len(message)) + message
    kind = "application/grpc-web-text" if text else "application/grpc-web+proto"
    headers = {"content-type": kind, "accept": kind, "x-grpc-web": "1"}
    reply = await send(gateway.port, "POST", STREAM, headers, base64.b64encode(body) if text else body)
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("application/grpc-web")
    *messages, (trailer_flags, trailers) = frames(decode_groups(reply.body) if text else reply.body)
    events = [chat_service_pb2.StreamChatCompletionResponse.FromString(payload) for _, payload in messages]
    assert [event.WhichOneof("event") for event in events] == ["started", "delta", "delta", "finished"]
    assert trailer_flags == 0x80
    assert b"grpc-status:0" in trailers
