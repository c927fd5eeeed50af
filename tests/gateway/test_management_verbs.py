"""The management verbs of models over REST: plain transcoding of the typed service, with OpenAI's errors."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from allm.models.v1 import model_pb2, model_service_pb2, model_service_pb2_grpc
from google.rpc import error_details_pb2, status_pb2

from services.errors import (
    AllmError,
    Internal,
    InvalidRequest,
    ModelExists,
    ModelInvalid,
    ModelNotFound,
    ModelNotReady,
    OutOfMemory,
    Overloaded,
    Timeout,
    Unsupported,
)
from services.rpc.call import Call
from tests.case import case
from tests.gateway.envoy_process import RunningGateway
from tests.gateway.scripted_catalog import ScriptedCatalog
from tests.gateway.upstream import DETAILS
from tests.gateway.wire import send

pytestmark = pytest.mark.asyncio(loop_scope="session")
MODELS = "/v1/models"
JSON = {"content-type": "application/json"}


async def test_registering(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    body = b'{"id": "org/m", "source": "hf://org/m", "format": "gguf", "aliases": ["a", "b"], "unknown": {"x": [1]}}'
    reply = await send(gateway.port, "POST", MODELS, JSON, body)
    assert reply.status == 200
    assert catalog.requests == [
        model_service_pb2.RegisterModelRequest(id="org/m", source="hf://org/m", format="gguf", aliases=["a", "b"])
    ]


async def test_an_answer_holds_the_model(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    """Fields have their proto names; enums are written by name."""

    async def full(request: Any, call: Call) -> model_pb2.Model:
        return model_pb2.Model(
            id='"}}', state=model_pb2.MODEL_STATE_DOWNLOADING, replicas=[model_pb2.ReplicaStatus(done_bytes=2**40)]
        )

    catalog.manage = full
    reply = await send(gateway.port, "POST", MODELS, JSON, b"{}")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.headers["content-length"] == str(len(reply.body))
    assert reply.json == {
        "model": {
            "id": '"}}',
            "state": "MODEL_STATE_DOWNLOADING",
            "replicas": [{"done_bytes": str(2**40)}],
        }
    }


async def test_an_answer_with_nothing_in_it(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    async def empty(request: Any, call: Call) -> model_pb2.Model:
        return model_pb2.Model()

    catalog.manage = empty
    assert (await send(gateway.port, "POST", MODELS, JSON, b"{}")).json == {"model": {}}


async def test_ids_in_paths(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    kinds = {"load": "LoadModelRequest", "unload": "UnloadModelRequest", "update": "UpdateModelRequest"}
    for path, name in [
        ("m", "m"),
        ("llama3:8b", "llama3:8b"),
        ("org/name", "org/name"),
        ("org%2Fname", "org/name"),
        ("org%2Fllama3:8b", "org/llama3:8b"),
        ("org/llama3%3A8b", "org/llama3:8b"),
        ("a@b+c", "a@b+c"),
        ("m%3Aload", "m:load"),
    ]:
        for verb, kind in kinds.items():
            with case(path=path, verb=verb):
                catalog.forget()
                reply = await send(gateway.port, "POST", f"{MODELS}/{path}:{verb}", JSON, b"{}")
                assert (reply.status, reply.json["model"]["id"]) == (200, name)
                assert [type(request).__name__ for request in catalog.requests] == [kind]


async def test_a_body_is_not_needed(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    for headers in [{}, JSON, {"content-type": "application/x-www-form-urlencoded"}]:
        for body in [None, b"", b"{}"]:
            with case(headers=headers, body=body):
                catalog.forget()
                reply = await send(gateway.port, "POST", f"{MODELS}/m:load", headers, body)
                assert reply.status == 200
                assert catalog.requests == [model_service_pb2.LoadModelRequest(id="m")]


async def test_a_body_is_read(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    await send(gateway.port, "POST", f"{MODELS}/m:load", JSON, b'{"runtime": "torch", "id": "m"}')
    await send(gateway.port, "POST", f"{MODELS}/m:update", JSON, b'{"aliases": {"names": ["a"]}}')
    await send(gateway.port, "POST", f"{MODELS}/m:update", JSON, b'{"aliases": {}}')
    await send(gateway.port, "POST", f"{MODELS}/m:update", JSON, b'{"aliases": null}')
    load, change, clear, leave = catalog.requests
    assert (load.id, load.runtime) == ("m", "torch")
    assert list(change.aliases.names) == ["a"]
    assert clear.HasField("aliases")
    assert not leave.HasField("aliases")


async def test_a_wrong_body_is_refused_by_name(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    for path, body, named in [
        (MODELS, b'{"id": 3}', "id: invalid value 3"),
        (MODELS, b'{"id": {"a": 1}}', "for type id"),
        (MODELS, b'{"id": ["a"]}', "not repeating"),
        (MODELS, b'{"aliases": {"a": 1}}', "aliases"),
        (MODELS, b'{"aliases": [1]}', "aliases[0]: invalid value 1"),
        (f"{MODELS}/m:update", b'{"aliases": ["a"]}', "not repeating"),
        (MODELS, b'{"id": "a"', "Unexpected end"),
        (MODELS, b'{"id": "a"} x', "before end of input"),
        (MODELS, b"not json", "Unexpected token"),
        (MODELS, b"[]", "must be a message"),
        (MODELS, b'"a"', "must be a message"),
        (MODELS, b'{"id": "\xff"}', "UTF-8"),
        (MODELS, b'{"x":' * 200, "too deep"),
        (f"{MODELS}/m:load", b'{"id": "other"}', '"m" of the field id is conflicting with the value "other"'),
        (f"{MODELS}/m:load", b"x", "Unexpected token"),
    ]:
        with case(path=path, body=body, named=named):
            reply = await send(gateway.port, "POST", path, JSON, body)
            assert reply.status == 400
            assert (reply.error["type"], reply.error["param"], reply.error["code"]) == (
                "invalid_request_error",
                None,
                None,
            )
            assert reply.error["message"].startswith("The request body is not what this URL takes: ")
            assert named in reply.error["message"]
            assert not catalog.requests


async def test_a_wrong_body_is_not_logged(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    reply = await send(gateway.port, "POST", MODELS, JSON, b'{"source": "secret-9" secret-9')
    assert "secret-9" in reply.error["message"], "the caller may see its own words, and this test can fail"
    assert "secret-9" not in "\n".join(await gateway.logged(reply.headers["x-request-id"]))


async def test_one_value_passes_for_a_list_of_one(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    """The transcoder is lenient here, and no option changes that."""
    await send(gateway.port, "POST", MODELS, JSON, b'{"aliases": "x"}')
    assert catalog.requests == [model_service_pb2.RegisterModelRequest(aliases=["x"])]


async def test_nothing_else_is_reachable_by_rest(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    for method, path in [
        ("POST", f"{MODELS}/m"),
        ("POST", f"{MODELS}/m:delete"),
        ("POST", f"{MODELS}/m%3Aload"),
        ("GET", f"{MODELS}/m:load"),
        ("DELETE", f"{MODELS}/m:load"),
        ("PUT", f"{MODELS}/m"),
        ("PATCH", f"{MODELS}/m:update"),
        *(
            ("POST", f"/allm.models.v1.ModelService/{rpc}")
            for rpc in ("RegisterModel", "DeleteModel", "ReportModelStatus", "RecordBenchmark", "WatchModels")
        ),
    ]:
        with case(method=method, path=path):
            body = b'{"id": "m"}' if method in ("POST", "PUT", "PATCH") else None
            reply = await send(gateway.port, method, path, JSON, body)
            assert (reply.status, reply.error["message"]) == (404, f"Invalid URL ({method} {path})")
            assert not catalog.metadata


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelExists("`m` is registered as gguf from file:///m", param="id"), 409),
        (InvalidRequest("missing config.json and tokenizer.json", param="source"), 400),
        (ModelNotFound("no such model"), 404),
        (ModelInvalid("shard 2 of 3 is missing"), 400),
        (Unsupported("no runtime for it"), 501),
        (Unsupported("no such format", param="format"), 400),
        (ModelNotReady("still on its way", retry_after=7), 503),
        (OutOfMemory("needs 9 GB, 1 GB is free"), 503),
        (Overloaded("busy", retry_after=3), 429),
        (Timeout("the hub did not answer"), 504),
        (Internal("a bug"), 500),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, AllmError) else "",
)
async def test_errors_are_openais(
    gateway: RunningGateway, catalog: ScriptedCatalog, error: AllmError, status: int
) -> None:
    async def fail(request: Any, call: Call) -> model_pb2.Model:
        assert call.transcoded
        raise error

    catalog.manage = fail
    reply = await send(gateway.port, "POST", f"{MODELS}/m:load", JSON, b"{}")
    assert reply.status == status
    assert reply.error == error.openai_object()
    assert {name: reply.headers[name] for name in error.headers()} == error.headers()
    assert not [name for name in reply.headers if name.startswith(("grpc-", "x-envoy-", "x-http-"))]
    assert len(catalog.requests) == 1, "the catalog's refusals are not tried again"


async def test_a_grpc_caller_gets_the_same_error_as_a_status(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    async def fail(request: Any, call: Call) -> model_pb2.Model:
        assert not call.transcoded
        raise ModelExists("`m` is registered", param="id")

    catalog.manage = fail
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        spoofed = (("x-envoy-original-path", "/v1/models"),)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.RegisterModel(model_service_pb2.RegisterModelRequest(id="m"), metadata=spoofed)
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.ALREADY_EXISTS, "`m` is registered")
    trailers = dict(raised.value.trailing_metadata() or ())
    assert "x-http-status" not in trailers
    status = status_pb2.Status.FromString(trailers[DETAILS])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.metadata["param"]) == ("INVALID_REQUEST", "id")


async def test_the_log_names_path_and_method(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    reply = await send(gateway.port, "POST", f"{MODELS}/m:load?x=secret-9", JSON, b"{}")
    request_id = reply.headers["x-request-id"]
    lines = [json.loads(line) for line in await gateway.logged(request_id)]
    (entry,) = [line for line in lines if line.get("request_id") == request_id]
    assert (entry["path"], entry["rpc"]) == (f"{MODELS}/m:load", "/allm.models.v1.ModelService/LoadModel")
    assert (entry["attempts"], entry["status"]) == (1, 200)
