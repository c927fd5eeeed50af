"""One replica of the text service, called directly over the typed API: the test chooses the replica and the client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from allm.text.v1 import chat_pb2, response_pb2, response_service_pb2, response_service_pb2_grpc
from google.rpc import error_details_pb2, status_pb2

from tests.stack import MODEL, POLL_SECONDS, Stack

PATIENCE_SECONDS = 60
RUNNING = (response_pb2.RESPONSE_STATUS_QUEUED, response_pb2.RESPONSE_STATUS_IN_PROGRESS)


class Replica:
    """A client of one replica, under a client id that the test chooses."""

    def __init__(self, channel: grpc.Channel, client: str = "ann") -> None:
        self._channel = channel
        self._stub = response_service_pb2_grpc.ResponseServiceStub(channel)
        self._metadata = (("x-client-id", client),)

    def as_client(self, client: str) -> Replica:
        return Replica(self._channel, client)

    def create(self, text: str, sampling: dict[str, Any] | None = None, **settings: Any) -> response_pb2.Response:
        request = response_service_pb2.CreateResponseRequest(**asked(text, sampling, **settings))
        return self.call("CreateResponse", request).response

    def get(self, response_id: str) -> response_pb2.Response:
        return self.call("GetResponse", response_service_pb2.GetResponseRequest(id=response_id)).response

    def cancel(self, response_id: str) -> response_pb2.Response:
        return self.call("CancelResponse", response_service_pb2.CancelResponseRequest(id=response_id)).response

    def call(self, method: str, request: Any) -> Any:
        return getattr(self._stub, method)(request, timeout=PATIENCE_SECONDS, metadata=self._metadata)


def asked(text: str, sampling: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    parameters = chat_pb2.SamplingParameters(**{"temperature": 0, "max_tokens": 12, **(sampling or {})})
    return {
        "model": MODEL,
        "input": [said(text)],
        "settings": response_pb2.ResponseSettings(sampling=parameters, **settings),
    }


def said(text: str) -> response_pb2.Item:
    content = [chat_pb2.ContentPart(text=text)]
    return response_pb2.Item(message=response_pb2.MessageItem(role=chat_pb2.CHAT_ROLE_USER, content=content))


def text_of(response: response_pb2.Response) -> str:
    return "".join(part.text for item in response.output for part in item.message.content)


def wait_until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)
    return found


def can_answer(replica: Replica) -> bool:
    try:
        replica.create("Hi", {"max_tokens": 1})
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error
        return False
    return True


def reason_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str, str]:
    """Returns the status, allm's error code and the parameter."""
    status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return error.code(), info.reason, info.metadata.get("param", "")


def replica(stack: Stack, number: int) -> Iterator[Replica]:
    """Yields one of the replicas of a stack, counted from 1, once it answers."""
    folder = Path(stack.note["folder"])
    with grpc.insecure_channel(f"unix:{folder / f'text-{number}.sock'}") as channel:
        found = Replica(channel)
        wait_until(lambda: can_answer(found))
        yield found


def long(replica: Replica) -> response_pb2.Response:
    """Starts a background response that outlasts any test."""
    return replica.create("Count.", {"max_tokens": 8000, "ignore_eos": True}, background=True)
