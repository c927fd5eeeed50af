"""Errors of a text service whose worker hangs, is too slow or is overloaded, in both wire formats.

No gateway and no model: tests/text/test_loaded.py breaks real workers, and tests/text/test_impatient_callers.py calls
through the gateway.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.openai.v1 import error_pb2
from allm.text.v1 import chat_service_pb2
from google.rpc import error_details_pb2, status_pb2

from services.text.engine.messages import Piece
from services.worker.messages import Cancel
from tests.stack import POLL_SECONDS
from tests.text.puppet_service import READY, PuppetService, end, puppet_service, stepped, submitted
from tests.text.service import PATIENCE_SECONDS, typed_chat

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
CACHED = 2


@dataclass(frozen=True)
class Refusal:
    """The error of a call."""

    code: grpc.StatusCode
    message: str
    trailers: dict[str, Any]

    @property
    def reason(self) -> str:
        """Error code of a typed call, from the ErrorInfo."""
        (detail,) = status_pb2.Status.FromString(self.trailers["grpc-status-details-bin"]).details
        info = error_details_pb2.ErrorInfo()
        assert detail.Unpack(info)
        return info.reason

    @property
    def openai(self) -> tuple[str, str, str]:
        """Type, code and message of OpenAI's error object, which the gateway writes for a REST caller."""
        error = error_pb2.ErrorStatus.FromString(self.trailers["grpc-status-details-bin"]).error
        return error.type, error.code.string_value, error.message


async def read(call: Any) -> list[bytes]:
    return [piece.data async for piece in call]


async def refused(call: Any) -> Refusal:
    """Reads a call to its end, which must be an error."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    error = caught.value
    return Refusal(error.code(), error.details() or "", dict(error.trailing_metadata()))


async def in_band(call: Any) -> tuple[str, str, str]:
    """Reads an event stream to its error and returns type, code and message."""
    events: list[bytes] = []
    with pytest.raises(grpc.aio.AioRpcError):
        async for piece in call:
            events += piece.data.split(b"\n\n")
    assert b"Paris" in b"".join(events[:-2]), "what was there before it is sent"
    error = json.loads([event for event in events if event][-1].removeprefix(b"data: "))["error"]
    return error["type"], error["code"], error["message"]


async def until(condition: Callable[[], Any]) -> None:
    while not condition():  # noqa: ASYNC110 (what the condition looks at has no events)
        await asyncio.sleep(POLL_SECONDS)


def typed(service: PuppetService) -> Any:
    """Opens a typed stream."""
    request = chat_service_pb2.StreamChatCompletionRequest()
    request.CopyFrom(typed_chat())
    return service.chat.StreamChatCompletion(request)


async def ended_alike(service: PuppetService) -> tuple[str, str, str]:
    """Calls the service in every way; returns type, code and message of the error that all calls share."""
    stream, whole, typed_error = await asyncio.gather(
        in_band(service.post(messages=MESSAGES, stream=True)),
        refused(service.post(messages=MESSAGES)),
        refused(typed(service)),
    )
    assert whole.code == typed_error.code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert whole.trailers["x-http-status"] == "504"
    assert (typed_error.reason, typed_error.message) == ("TIMEOUT", stream[2])
    assert whole.openai == stream
    return stream


async def test_a_hung_worker_is_replaced_and_its_requests_end_with_timeout(folder: Path) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), puppet_service(folder, stall_seconds=0.5) as service:
        kind, code, message = await ended_alike(service)
        assert (kind, code) == ("server_error", "timeout")
        assert "no progress" in message
        hung = list(service.workers)
        assert all(worker.killed for worker in hung)
        service.script = end
        assert b"Paris" in b"".join(await read(service.post(messages=MESSAGES)))
        assert service.workers[-1] not in hung


async def test_a_request_that_takes_too_long_ends_with_timeout_and_frees_its_place(folder: Path) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), puppet_service(folder, request_seconds=0.5) as service:
        kind, code, message = await ended_alike(service)
        assert (kind, code) == ("server_error", "timeout")
        assert "ALLM_REQUEST_SECONDS" in message
        (worker,) = service.workers
        asked = {request.request for request in submitted(worker)}
        assert len(asked) == 3
        assert {sent.request for sent in worker.sent if isinstance(sent, Cancel)} == asked
        assert not worker.killed


async def test_beyond_the_queue_requests_are_refused_and_those_in_it_complete(folder: Path) -> None:
    one_place = replace(READY, max_sequences=1)
    async with asyncio.timeout(PATIENCE_SECONDS), puppet_service(folder, one_place, queue_limit=1) as service:
        first = aiter(service.post(messages=MESSAGES, stream=True))
        assert (await anext(first)).data.startswith(b"data: ")
        second = asyncio.ensure_future(read(service.post(messages=MESSAGES)))
        await until(lambda: len(submitted(service.workers[0])) == 2)
        over, typed_error = await refused(service.post(messages=MESSAGES)), await refused(typed(service))
        (worker,) = service.workers
        for request in submitted(worker):
            worker.say(stepped(Piece(request.request, " it is", "stop", 2, 0)))
        assert (await read(first))[-1].endswith(b"data: [DONE]\n\n")
        assert json.loads(b"".join(await second))["choices"][0]["message"]["content"] == "Paris it is"
    assert over.code == typed_error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (over.trailers["x-http-status"], *over.openai[:2]) == ("429", "rate_limit_error", "overloaded")
    assert int(over.trailers["retry-after"]) >= 1
    assert "ALLM_QUEUE_LIMIT" in over.message
    assert (typed_error.reason, typed_error.message) == ("OVERLOADED", over.openai[2])


async def test_more_messages_than_tokens_fit_are_refused_before_they_are_rendered(folder: Path) -> None:
    many = [{"role": "user", "content": "x"}] * (READY.context_tokens + 1)
    async with asyncio.timeout(PATIENCE_SECONDS), puppet_service(folder) as service:
        error = await refused(service.post(messages=many))
    assert error.openai[:2] == ("invalid_request_error", "context_length_exceeded")
    assert f"{len(many)} messages" in error.message


@pytest.mark.parametrize(
    ("method", "asked", "details"),
    [
        ("CreateChatCompletion", {"messages": MESSAGES}, "prompt_tokens_details"),
        ("CreateResponse", {"input": "Hello.", "store": False}, "input_tokens_details"),
    ],
)
async def test_a_session_has_a_name_and_its_cached_tokens_show_in_usage(
    folder: Path, method: str, asked: dict[str, Any], details: str
) -> None:
    """tests/text/engine/runtimes/test_llama_cpp.py tests the name's effect on the cache."""
    async with asyncio.timeout(PATIENCE_SECONDS), puppet_service(folder) as service:
        service.script = lambda worker, request: end(worker, request, cached=CACHED)
        answer = json.loads(b"".join(await read(service.post(method, prompt_cache_key="session", **asked))))
        assert answer["usage"][details]["cached_tokens"] == CACHED
        await read(service.post(method, **asked))
        assert [request.cache_key for request in submitted(service.workers[0])] == ["session", ""]
