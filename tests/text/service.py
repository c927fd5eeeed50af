"""A running stack seen from outside: requests over REST and typed gRPC, the runtime's counters, the processes."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import psutil
import pytest
from allm.text.v1 import chat_pb2, chat_service_pb2, chat_service_pb2_grpc
from google.rpc import error_details_pb2, status_pb2

from tests.operator_side import Reply
from tests.processes import has_ended
from tests.stack import MODEL, POLL_SECONDS, Stack

CHAT = "/v1/chat/completions"
QUESTION = "What is the capital of France?"
PATIENCE_SECONDS = 60
LONG = 8000  # tokens: takes far longer than any test
RUNNING, WAITING = "allm_requests_running", "allm_requests_waiting"
CELLS, STEPS = "allm_kv_cells_active", "allm_engine_steps_total"
WORKER = "services.text.engine"

# --- REST


def chat(content: str = QUESTION, **parameters: Any) -> bytes:
    """Returns the body of a chat request."""
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": MODEL, "messages": messages, **parameters}).encode()


def long_chat(tokens: int = LONG, **parameters: Any) -> bytes:
    """Returns a chat request whose answer reaches its token limit."""
    return chat("Count.", max_tokens=tokens, ignore_eos=True, **parameters)


@contextmanager
def asking(stack: Stack, body: bytes) -> Iterator[http.client.HTTPConnection]:
    """Sends a chat request and yields before reading its response. Leaving hangs up."""
    with closing(http.client.HTTPConnection("127.0.0.1", stack.port, timeout=PATIENCE_SECONDS)) as connection:
        connection.request("POST", CHAT, body, {"content-type": "application/json"})
        yield connection


@contextmanager
def streaming(stack: Stack, body: bytes) -> Iterator[http.client.HTTPResponse]:
    """Starts a streamed chat and yields after its first event. Leaving hangs up."""
    with asking(stack, body) as connection, closing(connection.getresponse()) as response:
        assert response.status == 200, response.read()
        assert response.readline().startswith(b"data: ")
        yield response


def reply_to(connection: http.client.HTTPConnection) -> Reply:
    """Waits for the whole response."""
    with closing(connection.getresponse()) as response:
        return Reply(response.status, response.headers, response.read())


def post(stack: Stack, body: bytes) -> Reply:
    """Sends a chat request and waits for the whole response."""
    with asking(stack, body) as connection:
        return reply_to(connection)


def last_event(response: http.client.HTTPResponse) -> str:
    """Reads a stream to its end and returns the data of its last event."""
    lines = [line for line in response.read().decode().splitlines() if line]
    assert all(line.startswith("data: ") for line in lines), lines[-3:]
    return lines[-1].removeprefix("data: ")


def in_band_error(response: http.client.HTTPResponse) -> dict[str, Any]:
    """Reads a stream to its end, which must be an error, and returns the error."""
    event = json.loads(last_event(response))
    assert set(event) == {"error"}, event
    error: dict[str, Any] = event["error"]
    return error


def listed(stack: Stack) -> list[str]:
    """Returns the model ids in /v1/models."""
    with urllib.request.urlopen(f"{stack.base_url}/models", timeout=PATIENCE_SECONDS) as reply:
        return [model["id"] for model in json.loads(reply.read())["data"]]


# --- typed gRPC


@dataclass(frozen=True)
class TypedError:
    """A gRPC error: its status, and the ErrorInfo in its details."""

    code: grpc.StatusCode
    message: str
    reason: str
    metadata: dict[str, str]


def typed_chat(content: str = QUESTION, **sampling: Any) -> chat_service_pb2.StreamChatCompletionRequest:
    """Returns a typed chat request."""
    message = chat_pb2.ChatMessage(role=chat_pb2.CHAT_ROLE_USER, content=[chat_pb2.ContentPart(text=content)])
    parameters = chat_pb2.SamplingParameters(**sampling)
    return chat_service_pb2.StreamChatCompletionRequest(model=MODEL, messages=[message], sampling=parameters)


@contextmanager
def typed_stream(stack: Stack, request: chat_service_pb2.StreamChatCompletionRequest) -> Iterator[Any]:
    """Opens a typed chat stream over a separate connection. Leaving cancels it."""
    with grpc.insecure_channel(stack.grpc_address) as channel:
        call = chat_service_pb2_grpc.ChatServiceStub(channel).StreamChatCompletion(request, timeout=PATIENCE_SECONDS)
        yield call
        call.cancel()


def error_of(call: Iterable[Any]) -> TypedError:
    """Reads a typed stream to its end, which must be an error with an ErrorInfo."""
    with pytest.raises(grpc.RpcError) as caught:
        for _ in call:
            pass
    error: Any = caught.value
    trailers = dict(error.trailing_metadata())
    assert "grpc-status-details-bin" in trailers, error
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    (detail,) = status.details
    info = error_details_pb2.ErrorInfo()
    assert detail.Unpack(info)
    return TypedError(error.code(), error.details(), info.reason, dict(info.metadata))


def typed_error(stack: Stack, request: chat_service_pb2.StreamChatCompletionRequest) -> TypedError:
    """Returns the error that ends a typed request."""
    with typed_stream(stack, request) as call:
        return error_of(call)


# --- processes and progress


def counter(stack: Stack, name: str) -> float:
    """Returns one of the runtime's counters of the demo model from /metrics; 0 before the model is loaded."""
    with urllib.request.urlopen(stack.note["metrics"]["text"], timeout=PATIENCE_SECONDS) as reply:
        found = re.search(rf'^{name}{{model="{MODEL}"}} (\S+)$', reply.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def ended(stack: Stack) -> float:
    """Returns the service's count of ended requests for the demo model, failed ones included."""
    with urllib.request.urlopen(stack.note["metrics"]["text"], timeout=PATIENCE_SECONDS) as reply:
        found = re.findall(rf'^allm_requests_total{{[^}}]*model="{MODEL}"[^}}]*}} (\S+)$', reply.read().decode(), re.M)
    return sum(map(float, found))


def is_idle(stack: Stack) -> bool:
    """Returns whether no request runs, waits or holds a KV cell."""
    return all(counter(stack, name) == 0 for name in (RUNNING, WAITING, CELLS))


def wait_until(stack: Stack, condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Waits until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, stack.output()
        time.sleep(POLL_SECONDS)


def warm(stack: Stack) -> None:
    """Waits until the model is loaded and no request runs."""
    assert "Paris" in post(stack, chat(temperature=0, max_tokens=16)).text
    wait_until(stack, lambda: is_idle(stack))


def workers(stack: Stack) -> list[psutil.Process]:
    """Returns the worker processes of the text service."""
    children = psutil.Process(stack.note["children"]["text"]).children()
    return [child for child in children if not has_ended(child) and WORKER in child.cmdline()]


@contextmanager
def suspended(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Suspends the processes for the duration of the block."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()
