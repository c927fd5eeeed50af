"""The RPC wrapper on a real grpc.aio server: errors in both formats, limits, logs, counters."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest
from allm.models.v1 import model_pb2, model_service_pb2, model_service_pb2_grpc
from allm.openai.v1 import error_pb2, text_service_pb2_grpc
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc
from google.api import httpbody_pb2
from google.rpc import error_details_pb2, status_pb2
from prometheus_client import REGISTRY

from services.auth.caller import Caller, keep_caller
from services.auth.identity import ADMIN, INFERENCE, Identity
from services.errors import (
    Internal,
    InvalidRequest,
    ModelExists,
    ModelInvalid,
    ModelNotFound,
    OutOfMemory,
    Overloaded,
    Unsupported,
)
from services.rest.openai import sse
from services.rest.openai.sse import facade
from services.rpc import call as call_module
from services.rpc.call import Call, typed
from services.rpc.deadline import Deadline, caller_deadline
from services.telemetry import metrics
from services.telemetry.logs import JsonFormatter

SECRET = "the caller's words"
Script = Callable[[Call], Awaitable[None]]


class Scripted(
    model_service_pb2_grpc.ModelServiceServicer,
    text_service_pb2_grpc.TextServiceServicer,
    chat_service_pb2_grpc.ChatServiceServicer,
):
    """A servicer of every kind; each call runs the test's script."""

    script: Script

    @typed()
    async def GetModel(self, request, call: Call):  # noqa: N802
        await self.script(call)
        return model_service_pb2.GetModelResponse(model=model_pb2.Model(id=request.id))

    @typed(seconds=0.05)
    async def ListModels(self, request, call: Call):  # noqa: N802
        await self.script(call)
        return model_service_pb2.ListModelsResponse()

    @typed()
    async def StreamChatCompletion(self, request, call: Call):  # noqa: N802
        await self.script(call)

    @facade(operation="chat")
    async def CreateChatCompletion(self, request, call: Call):  # noqa: N802
        await self.script(call)


class Stack:
    """The scripted service, its client, and its log."""

    def __init__(self, channel: grpc.aio.Channel, servicer: Scripted, log: io.StringIO) -> None:
        self.servicer = servicer
        self.models = model_service_pb2_grpc.ModelServiceStub(channel)
        self.chat = chat_service_pb2_grpc.ChatServiceStub(channel)
        self.rest = text_service_pb2_grpc.TextServiceStub(channel)
        self._log = log

    def lines(self) -> list[dict]:
        return [json.loads(line) for line in self._log.getvalue().splitlines()]

    def log_text(self) -> str:
        return self._log.getvalue()

    def play(self, script: Script) -> None:
        self.servicer.script = script

    def fail(self, error: Exception) -> None:
        async def script(_: Call) -> None:
            raise error

        self.play(script)

    async def typed_error(self, **metadata: str) -> grpc.aio.AioRpcError:
        request = model_service_pb2.GetModelRequest(id=SECRET)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.models.GetModel(request, metadata=tuple(metadata.items()), timeout=30)
        return caught.value

    async def rest_error(self, **metadata: str) -> tuple[list[bytes], grpc.aio.AioRpcError]:
        """Returns the messages of a REST stream before its error, and the error."""
        request = httpbody_pb2.HttpBody(data=SECRET.encode())
        got: list[bytes] = []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for message in self.rest.CreateChatCompletion(request, metadata=tuple(metadata.items()), timeout=30):
                got.append(message.data)
        return got, caught.value


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    log, servicer = io.StringIO(), Scripted()
    handler = logging.StreamHandler(log)
    handler.setFormatter(JsonFormatter())
    call_module.log.addHandler(handler)
    call_module.log.setLevel(logging.INFO)
    server = grpc.aio.server()
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(servicer, server)
    text_service_pb2_grpc.add_TextServiceServicer_to_server(servicer, server)
    chat_service_pb2_grpc.add_ChatServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Stack(channel, servicer, log)
    finally:
        await server.stop(None)
        call_module.log.removeHandler(handler)


def trailers(error: grpc.aio.AioRpcError) -> dict[str, str | bytes]:
    return dict(error.trailing_metadata() or ())


def info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    status = status_pb2.Status.FromString(trailers(error)["grpc-status-details-bin"])
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    (detail,) = status.details
    found = error_details_pb2.ErrorInfo()
    assert detail.Unpack(found)
    return found


def openai_error(error: grpc.aio.AioRpcError) -> error_pb2.Error:
    status = error_pb2.ErrorStatus.FromString(trailers(error)["grpc-status-details-bin"])
    assert (status.code, status.message) == (0, ""), "the gateway would print them"
    return status.error


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (what it waits for sets no event)
            await asyncio.sleep(0.01)


async def test_a_typed_error_carries_a_status_and_an_error_info(stack: Stack) -> None:
    stack.fail(Unsupported("'tools' are not supported", param="tools"))
    error = await stack.typed_error(**{"x-request-id": "id-1"})
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "'tools' are not supported"
    found = info(error)
    assert (found.reason, found.domain) == ("UNSUPPORTED", "allm")
    assert dict(found.metadata) == {"request_id": "id-1", "param": "tools"}
    assert "x-http-status" not in trailers(error), "that is for REST alone"


async def test_a_typed_error_without_a_parameter_names_none(stack: Stack) -> None:
    stack.fail(ModelNotFound("no such model"))
    assert set(info(await stack.typed_error()).metadata) == {"request_id"}


TRANSCODED = {"x-envoy-original-path": "/v1/models"}


@pytest.mark.parametrize(
    ("raised", "code", "http"),
    [
        (ModelExists("`m` is registered", param="id"), "model_exists", "409"),
        (InvalidRequest("'source' is wrong", param="source"), None, "400"),
        (Unsupported("no runtime"), "unsupported", "501"),
        (OutOfMemory("needs 9 GB, 1 GB is free"), "out_of_memory", "503"),
        (KeyError("private detail"), "internal", "500"),
    ],
)
async def test_a_typed_error_is_openais_object_where_the_call_was_transcoded(
    stack: Stack, raised: Exception, code: str | None, http: str
) -> None:
    stack.fail(raised)
    error = await stack.typed_error(**TRANSCODED)
    found = openai_error(error)
    assert (found.code.string_value if found.code.HasField("string_value") else None) == code
    assert found.param.string_value == (getattr(raised, "param", None) or "")
    assert found.message == error.details()
    assert "private detail" not in str(error)
    assert trailers(error)["x-http-status"] == http


async def test_headers_of_an_error_go_along_where_the_call_was_transcoded(stack: Stack) -> None:
    stack.fail(Overloaded("busy", retry_after=7))
    assert trailers(await stack.typed_error(**TRANSCODED))["retry-after"] == "7"


async def test_a_time_limit_is_openais_too_where_the_call_was_transcoded(stack: Stack) -> None:
    async def script(_: Call) -> None:
        await asyncio.Event().wait()

    stack.play(script)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.models.ListModels(
            model_service_pb2.ListModelsRequest(), metadata=tuple(TRANSCODED.items()), timeout=30
        )
    assert openai_error(caught.value).code.string_value == "timeout"
    assert trailers(caught.value)["x-http-status"] == "504"


async def test_a_facade_error_is_openais_object_for_the_gateway(stack: Stack) -> None:
    stack.fail(InvalidRequest("'n' is wrong", param="n"))
    got, error = await stack.rest_error()
    assert got == []
    found = openai_error(error)
    assert (found.message, found.type) == ("'n' is wrong", "invalid_request_error")
    assert found.param.string_value == "n"
    assert found.code.WhichOneof("kind") == "null_value"


async def test_a_facade_error_prints_null_without_a_parameter(stack: Stack) -> None:
    stack.fail(Overloaded("busy", retry_after=7))
    _, error = await stack.rest_error()
    found = openai_error(error)
    assert found.param.WhichOneof("kind") == "null_value"
    assert found.code.string_value == "overloaded"
    assert trailers(error)["retry-after"] == "7"
    assert trailers(error)["x-http-status"] == "429"


async def test_a_refusal_for_good_asks_clients_not_to_retry(stack: Stack) -> None:
    stack.fail(OutOfMemory("needs 9 GB, 1 GB is free"))
    _, error = await stack.rest_error()
    assert trailers(error)["x-should-retry"] == "false"
    assert trailers(error)["x-http-status"] == "503"


@pytest.mark.parametrize("letter", ["x", "é", "😀"])
async def test_an_error_that_quotes_a_very_long_value_still_arrives_as_itself(stack: Stack, letter: str) -> None:
    stack.fail(ModelNotFound(f"The model `{letter * 100_000}` does not exist."))
    error = await stack.typed_error()
    assert error.code() == grpc.StatusCode.NOT_FOUND
    assert info(error).reason == "MODEL_NOT_FOUND"
    _, error = await stack.rest_error()
    assert error.code() == grpc.StatusCode.NOT_FOUND
    assert openai_error(error).message.startswith(f"The model `{letter}")


@pytest.mark.parametrize("problem", [KeyError("private detail"), TimeoutError("private detail")])
async def test_unexpected_error_is_logged_in_full_and_returned_without_details(
    stack: Stack, problem: Exception
) -> None:
    stack.fail(problem)
    error = await stack.typed_error(**{"x-request-id": "id-9"})
    assert error.code() == grpc.StatusCode.INTERNAL
    assert "private detail" not in str(error)
    assert "id-9" in error.details()
    assert info(error).reason == "INTERNAL"
    assert any("private detail" in line.get("exception", "") for line in stack.lines())
    _, rest = await stack.rest_error()
    assert openai_error(rest).code.string_value == "internal"
    assert "private detail" not in str(rest) + openai_error(rest).message


async def test_callers_without_the_admin_scope_see_no_folders_of_this_host(stack: Stack) -> None:
    shared = ModelInvalid("llama.cpp cannot load /srv/models/small/m.gguf: bad magic")

    def play(error: Exception, first: bool = False, scope: str = INFERENCE) -> None:
        async def script(call: Call) -> None:
            keep_caller(Caller(Identity("key_ann", frozenset({scope}))))
            if first:
                await call.send(httpbody_pb2.HttpBody(data=b"one"))
            raise error

        stack.play(script)

    play(shared)
    assert (await stack.typed_error()).details() == "llama.cpp cannot load m.gguf: bad magic"
    _, error = await stack.rest_error()
    assert openai_error(error).message == "llama.cpp cannot load m.gguf: bad magic"
    play(shared, first=True)
    got, _ = await stack.rest_error()
    assert b"cannot load m.gguf" in got[1]
    assert "/srv/models/small/m.gguf" in shared.message, "the log and other callers need it"
    play(shared, scope=ADMIN)
    assert "/srv/models/small/m.gguf" in (await stack.typed_error()).details()
    play(InvalidRequest("no url: /the/callers/words"))
    assert (await stack.typed_error()).details() == "no url: /the/callers/words"


async def test_an_error_after_the_first_message_goes_in_band_to_rest_callers(stack: Stack) -> None:
    async def script(call: Call) -> None:
        await call.send(sse.body([sse.data("one")]))
        raise Overloaded("too much")

    stack.play(script)
    got, error = await stack.rest_error()
    assert got[0] == b'data: "one"\n\n'
    assert json.loads(got[1].removeprefix(b"data: ")) == {
        "error": {"message": "too much", "type": "rate_limit_error", "param": None, "code": "overloaded"}
    }
    assert len(got) == 2
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_unexpected_in_band_exception_hides_its_details(stack: Stack) -> None:
    async def script(call: Call) -> None:
        await call.send(sse.body([sse.data("one")]))
        raise RuntimeError("private detail")

    stack.play(script)
    got, _ = await stack.rest_error()
    assert b"private detail" not in got[1]
    assert b'"code":"internal"' in got[1]


async def test_an_error_after_the_first_message_of_a_typed_stream_is_its_status(stack: Stack) -> None:
    async def script(call: Call) -> None:
        await call.send(chat_service_pb2.StreamChatCompletionResponse())
        raise Overloaded("too much")

    stack.play(script)
    got = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for message in stack.chat.StreamChatCompletion(chat_service_pb2.StreamChatCompletionRequest()):
            got.append(message)
    assert got == [chat_service_pb2.StreamChatCompletionResponse()]
    assert info(caught.value).reason == "OVERLOADED"


async def test_a_time_limit_ends_the_call_with_timeout(stack: Stack) -> None:
    ended = asyncio.Event()

    async def script(_: Call) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    stack.play(script)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.models.ListModels(model_service_pb2.ListModelsRequest(), timeout=30)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert info(caught.value).reason == "TIMEOUT"
    assert "0.05 seconds" in caught.value.details()
    assert ended.is_set()


async def test_a_caller_who_hangs_up_is_counted_and_logged_once(stack: Stack) -> None:
    ended = asyncio.Event()

    async def script(call: Call) -> None:
        try:
            await call.send(sse.body([sse.data("one")]))
            await asyncio.Event().wait()
        finally:
            ended.set()

    stack.play(script)
    labels = {"rpc": "Scripted.CreateChatCompletion", "code": "CANCELLED", "model": ""}
    before = counted("allm_errors_total", **labels)
    stream = stack.rest.CreateChatCompletion(httpbody_pb2.HttpBody(), metadata=(("x-request-id", "gone"),))
    await stream.read()
    assert stream.cancel()
    await until(lambda: any(line.get("code") == "CANCELLED" for line in stack.lines()))
    assert ended.is_set()
    assert counted("allm_errors_total", **labels) == before + 1
    (only,) = [line for line in stack.lines() if line.get("request_id") == "gone"]
    assert only["msg"] == "request failed"


async def test_a_call_whose_work_is_cancelled_by_others_has_an_end(stack: Stack) -> None:
    async def script(_: Call) -> None:
        work = asyncio.create_task(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(work.cancel)
        await work

    stack.play(script)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.models.GetModel(model_service_pb2.GetModelRequest(id="a"))
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    (line,) = [line for line in stack.lines() if line["msg"].startswith("unexpected error")]
    assert "CancelledError" in line["exception"]


async def test_a_callers_deadline_stops_the_work(stack: Stack) -> None:
    ended = asyncio.Event()

    async def script(_: Call) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    stack.play(script)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.models.GetModel(model_service_pb2.GetModelRequest(id="a"), timeout=0.2)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await until(ended.is_set)


async def test_a_request_is_logged_with_who_what_and_how_long_but_never_its_text(stack: Stack) -> None:
    async def script(call: Call) -> None:
        call.model = "m"
        call.facts["usage"] = {"prompt": 3}
        await call.send(sse.body([sse.data(f"an answer to {SECRET}")]))

    stack.play(script)
    metadata = (("x-request-id", "id-5"), ("x-client-id", "team-a"))
    async for message in stack.rest.CreateChatCompletion(
        httpbody_pb2.HttpBody(data=SECRET.encode()), metadata=metadata
    ):
        assert SECRET.encode() in message.data
    await until(lambda: bool(stack.lines()))
    (line,) = stack.lines()
    assert (line["msg"], line["request_id"], line["client"], line["model"]) == ("request done", "id-5", "team-a", "m")
    assert line["rpc"] == "Scripted.CreateChatCompletion"
    assert line["usage"] == {"prompt": 3}
    assert isinstance(line["ms"], int)
    assert SECRET not in stack.log_text()


async def test_parameters_without_effect_are_in_the_header_the_log_and_a_metric(stack: Stack) -> None:
    async def script(call: Call) -> None:
        call.model = "ignoring"
        call.ignore(["tools[1].web_search", "chat_template_kwargs.x", "line\nbreak: é,", "y" * 99])
        call.ignore_unknown([f"p{number}" for number in range(40)])
        await call.send(sse.body([sse.DONE]))

    stack.play(script)
    answer = stack.rest.CreateChatCompletion(httpbody_pb2.HttpBody())
    header = dict(await answer.initial_metadata())["x-allm-ignored-parameters"]
    names = header.split(", ")
    assert names[:5] == ["tools[1].web_search", "chat_template_kwargs.x", "line?break????", "y" * 64, "p0"]
    assert (len(names), names[-1]) == (17, "...")
    async for _ in answer:
        pass
    await until(lambda: bool(stack.lines()))
    assert stack.lines()[0]["ignored"] == names
    labels = {"rpc": "Scripted.CreateChatCompletion", "model": "ignoring"}
    assert counted("allm_ignored_parameters_total", **labels) == 17


async def test_an_error_names_parameters_without_effect_too_and_a_whole_answer_has_the_header(stack: Stack) -> None:
    async def fail(call: Call) -> None:
        call.ignore(["a"])
        raise InvalidRequest("no")

    async def ignore(call: Call) -> None:
        call.ignore(["a", "b"])

    stack.play(fail)
    assert trailers((await stack.rest_error())[1])["x-allm-ignored-parameters"] == "a"
    stack.play(ignore)
    answer = stack.models.GetModel(model_service_pb2.GetModelRequest(id="m"))
    assert dict(await answer.initial_metadata())["x-allm-ignored-parameters"] == "a, b"
    assert (await answer).model.id == "m"


async def test_unknown_parameters_are_refused_where_the_operator_wants_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(call: Call) -> None:
        call.ignore(["known"])
        call.ignore_unknown([])
        call.ignore_unknown(["temprature", "b"])

    monkeypatch.setattr(Call, "unknown_refused", True)
    stack.play(script)
    error = await stack.typed_error()
    assert (info(error).reason, info(error).metadata["param"]) == ("INVALID_REQUEST", "temprature")
    assert "'temprature'" in error.details()


async def test_a_failed_request_is_logged_with_its_code(stack: Stack) -> None:
    stack.fail(ModelNotFound("The model `x` does not exist."))
    await stack.typed_error(**{"x-request-id": "id-6"})
    (line,) = stack.lines()
    assert (line["msg"], line["code"], line["request_id"]) == ("request failed", "MODEL_NOT_FOUND", "id-6")
    assert line["error"] == "", "a caller's mistake may quote the request"
    assert SECRET not in stack.log_text()


async def test_a_fault_of_the_service_is_logged_in_its_words(stack: Stack) -> None:
    stack.fail(Internal("worker 7 ended: killed by SIGKILL"))
    await stack.typed_error()
    (line,) = stack.lines()
    assert (line["code"], line["error"]) == ("INTERNAL", "worker 7 ended: killed by SIGKILL")


async def test_callers_without_a_gateway_are_anonymous_and_get_an_id(stack: Stack) -> None:
    seen: list[Call] = []

    async def script(call: Call) -> None:
        seen.append(call)

    stack.play(script)
    for _ in range(2):
        await stack.models.GetModel(model_service_pb2.GetModelRequest(id="a"))
    assert [call.client for call in seen] == ["anonymous", "anonymous"]
    assert seen[0].request_id != seen[1].request_id
    assert {line["request_id"] for line in stack.lines()} == {call.request_id for call in seen}


async def test_requests_that_run_at_the_same_time_keep_their_own_ids(stack: Stack) -> None:
    barrier = asyncio.Barrier(3)

    async def script(call: Call) -> None:
        await barrier.wait()
        call_module.log.info("inside", extra={"expected": call.request_id})

    stack.play(script)
    request = model_service_pb2.GetModelRequest(id="a")
    calls = [stack.models.GetModel(request, metadata=(("x-request-id", f"id-{at}"),)) for at in range(3)]
    await asyncio.gather(*calls)
    inside = [line for line in stack.lines() if line["msg"] == "inside"]
    assert [line["request_id"] for line in inside] == [line["expected"] for line in inside]
    assert len({line["request_id"] for line in inside}) == 3


async def test_inference_is_timed_only_under_the_conventional_name(stack: Stack) -> None:
    seen = []

    async def script(call: Call) -> None:
        call.model = "inferring"
        seen.append(metrics.operation.get())
        if len(seen) == 2:
            raise Overloaded("x")

    stack.play(script)
    request = httpbody_pb2.HttpBody()
    assert [message async for message in stack.rest.CreateChatCompletion(request, timeout=30)] == []
    await stack.rest_error()
    gen_ai = dict(zip(metrics.SERVER_DURATION._labelnames, metrics.gen_ai("inferring", "chat"), strict=False))
    for error_type in ("", "OVERLOADED"):
        assert counted("gen_ai_server_request_duration_seconds_count", **gen_ai, error_type=error_type) == 1
    labels = {"rpc": "Scripted.CreateChatCompletion", "model": "inferring"}
    assert counted("allm_requests_total", **labels) == 2
    assert counted("allm_request_duration_seconds_count", **labels) == 0
    assert seen == ["chat", "chat"]


async def test_every_end_is_counted_and_timed(stack: Stack) -> None:
    labels = {"rpc": "Scripted.GetModel", "model": "counted"}

    async def script(call: Call) -> None:
        call.model = "counted"
        if len(stack.lines()) == 1:
            raise Overloaded("x")

    stack.play(script)
    await stack.models.GetModel(model_service_pb2.GetModelRequest(id="a"))
    await stack.typed_error()
    assert counted("allm_requests_total", **labels) == 2
    assert counted("allm_request_duration_seconds_count", **labels) == 2
    assert counted("allm_errors_total", code="OVERLOADED", **labels) == 1


# --- the caller's deadline


@pytest.mark.parametrize(
    ("metadata", "seconds", "message"),
    [
        ({}, 900, "the call's deadline has passed"),
        ({"x-request-timeout": "700.5"}, 700.5, "the request took longer than the 700.5 seconds of x-request-timeout"),
        ({"x-request-timeout": "950"}, 900, "the call's deadline has passed"),
    ],
)
async def test_work_for_a_call_sees_the_end_of_its_caller(
    stack: Stack, metadata: dict[str, str], seconds: float, message: str
) -> None:
    seen: list[Deadline | None] = []

    async def script(_: Call) -> None:
        seen.append(caller_deadline())
        await asyncio.create_task(note())

    async def note() -> None:
        seen.append(caller_deadline())

    stack.play(script)
    await stack.models.GetModel(model_service_pb2.GetModelRequest(id="a"), metadata=(*metadata.items(),), timeout=900)
    deadline, inside = seen
    assert deadline
    assert inside is deadline
    assert seconds - 60 < deadline.remaining < seconds + 10, "gRPC rounds up"
    assert (deadline.error().message, deadline.error().code) == (message, "TIMEOUT")


async def test_a_call_without_a_deadline_has_none(stack: Stack) -> None:
    seen: list[Deadline | None] = []

    async def script(_: Call) -> None:
        seen.append(caller_deadline())

    stack.play(script)
    await stack.models.GetModel(model_service_pb2.GetModelRequest(id="a"))
    assert seen == [None]


async def test_the_header_ends_what_no_worker_ends(stack: Stack) -> None:
    ended = asyncio.Event()

    async def script(call: Call) -> None:
        try:
            await call.send(sse.body([sse.data("one")]))
            await asyncio.Event().wait()
        finally:
            ended.set()

    stack.play(script)
    got, error = await stack.rest_error(**{"x-request-timeout": "0.05"})
    assert ended.is_set()
    assert trailers(error)["x-http-status"] == "504"
    reported = json.loads(got[1].removeprefix(b"data: "))["error"]
    assert (reported["type"], reported["code"]) == ("server_error", "timeout")
    assert reported["message"] == "the request took longer than the 0.05 seconds of x-request-timeout"


@pytest.mark.parametrize("value", ["", "soon", "0", "-1", "nan", "inf", "1s", "9" * 5000])
async def test_a_header_that_is_no_number_of_seconds_is_refused_by_name(stack: Stack, value: str) -> None:
    async def script(_: Call) -> None:
        raise AssertionError("it must not run")

    stack.play(script)
    _, error = await stack.rest_error(**{"x-request-timeout": value})
    found = openai_error(error)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert found.param.string_value == "x-request-timeout"
    assert "'x-request-timeout' must be a number of seconds above 0" in found.message
    assert len(found.message) < 200


# --- callers that do not read


@pytest.mark.parametrize("kind", ["rest", "chat"])
async def test_a_caller_who_reads_nothing_is_disconnected(
    stack: Stack, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Call, "slow_client_seconds", 0.2)
    monkeypatch.setattr(call_module, "IN_BAND_SECONDS", 0.1)
    sent, ended = [0], asyncio.Event()

    async def script(call: Call) -> None:
        try:
            while True:
                text = "x" * 100_000
                started = chat_service_pb2.ChatStarted(id=text)
                whole = chat_service_pb2.StreamChatCompletionResponse(started=started)
                await call.send(sse.body([sse.data(text)]) if kind == "rest" else whole)
                sent[0] += 1
        finally:
            ended.set()

    stack.play(script)
    labels = {
        "rpc": "Scripted.CreateChatCompletion" if kind == "rest" else "Scripted.StreamChatCompletion",
        "code": "TIMEOUT",
        "model": "",
    }
    before = counted("allm_errors_total", **labels)
    if kind == "rest":
        stream = stack.rest.CreateChatCompletion(httpbody_pb2.HttpBody())
    else:
        stream = stack.chat.StreamChatCompletion(chat_service_pb2.StreamChatCompletionRequest())
    await stream.read()
    await until(ended.is_set)
    assert sent[0] < 200, "what nobody reads is not kept"
    await until(lambda: counted("allm_errors_total", **labels) == before + 1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with asyncio.timeout(30):
            while await stream.read() is not grpc.aio.EOF:
                pass
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED, "told behind what was sent before"
    (line,) = [line for line in stack.lines() if line.get("code") == "TIMEOUT"]
    assert "ALLM_SLOW_CLIENT_SECONDS" in line["error"]
    assert not [line for line in stack.lines() if line["level"] == "error"]
