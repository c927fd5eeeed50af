"""OpenAI's facade of responses with a scripted worker that is silent for long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from services.text import running_answer
from services.text.engine.messages import Accepted, Piece
from services.worker.messages import RequestRefused
from tests.text.puppet_service import PuppetService, events, puppet_service, rest, stepped, submitted

ASKED: dict[str, Any] = {"method": "CreateResponse", "input": "Hi", "store": False}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes a moment without events for a silence."""
    monkeypatch.setattr(running_answer, "SILENT_SECONDS", 0.01)


def say_nothing(service: PuppetService) -> None:
    """Lets the worker accept requests and begin no answer."""
    service.script = lambda worker, request: worker.say(Accepted(request.request, 3))


async def after_silences(call: Any) -> bytes:
    """Reads a stream until it was silent three times."""
    data = b""
    while data.count(b"event: keepalive") < 3:
        data += (await call.read()).data
    return data


async def test_a_caller_is_told_that_its_prompt_is_still_computed(folder: Path) -> None:
    async with puppet_service(folder) as service:
        say_nothing(service)
        call = service.post(**ASKED, stream=True)
        data = await after_silences(call)
        (worker,) = service.workers
        (request,) = submitted(worker)
        worker.say(stepped(Piece(request.request, "Paris", "stop", 1, 0)))
        found = events(data + await rest(call))
    assert [name for name, _ in found[:3]] == ["response.created", "response.in_progress", "keepalive"]
    assert found[2][1] == {"type": "keepalive", "sequence_number": 2}
    assert [value["sequence_number"] for _, value in found] == list(range(len(found)))
    assert (found[-1][0], found[-1][1]["response"]["status"]) == ("response.completed", "completed")


async def test_an_error_after_a_silence_is_an_event_of_a_stream_and_otherwise_the_status(folder: Path) -> None:
    async with puppet_service(folder) as service:
        say_nothing(service)
        stream, whole = service.post(**ASKED, stream=True), service.post(**ASKED)
        data = await after_silences(stream)
        (worker,) = service.workers
        while len(submitted(worker)) < 2:
            data += (await stream.read()).data
        for request in submitted(worker):
            worker.say(RequestRefused(request=request.request, code="OVERLOADED", message="too much", param=""))
        name, value = events(data + await rest(stream))[-1]
        assert (name, value["response"]["error"]["message"]) == ("response.failed", "too much")
        with pytest.raises(grpc.aio.AioRpcError, match="too much"):
            await whole.read()
