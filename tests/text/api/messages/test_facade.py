"""Anthropic's facade with a scripted worker: thoughts, pings, and errors within a stream."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.errors import InvalidRequest
from services.text import running_answer
from services.text.engine.messages import Accepted, Piece, Submit
from services.worker.messages import RequestRefused
from tests.puppet_worker import PuppetWorker
from tests.text.puppet_service import READY, begin, events, puppet_service, rest, stepped

TOO_LONG = "CONTEXT_LENGTH_EXCEEDED"
ASKED: dict[str, Any] = {"method": "CreateMessage", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
# Enough of Qwen3's: it can be asked not to think, and the assistant's turn may begin within a thought.
QWEN = "{{ messages[0].content }}{% if enable_thinking is defined and enable_thinking is false %} no{% endif %}<think>"


async def test_thoughts(folder: Path) -> None:
    prompts: list[Any] = []

    def think(worker: PuppetWorker, request: Submit) -> None:
        prompts.append(request.prompt)
        pieces = [Piece(request.request, text, None, 1, 0) for text in ("I see", "</think>", "Paris")]
        last = Piece(request.request, "", "stop", 4, 2, stop="END")
        worker.say(Accepted(request.request, 3), stepped(*pieces, last))

    async with puppet_service(folder, replace(READY, chat_template=QWEN)) as service:
        service.script = think
        (piece,) = [piece async for piece in service.post(**ASKED, thinking={"type": "adaptive"})]
        message = json.loads(piece.data)
        assert message["content"] == [
            {"type": "thinking", "thinking": "I see", "signature": "allm"},
            {"type": "text", "text": "Paris"},
        ]
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")
        assert message["usage"]["input_tokens"] == 1
        assert message["usage"]["cache_read_input_tokens"] == 2
        omitted = {"type": "adaptive", "display": "omitted"}
        data = b"".join([piece.data async for piece in service.post(**ASKED, thinking=omitted, stream=True)])
        assert b"I see" not in data
        assert b"signature_delta" in data
        await service.post(**ASKED).read()
        assert prompts == ["Hi<think>", "Hi<think>", "Hi no<think>"], "thinking has to be asked for"


async def test_a_caller_gets_pings_while_its_prompt_is_computed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_answer, "SILENT_SECONDS", 0.01)
    async with puppet_service(folder) as service:
        service.script = lambda worker, request: worker.say(Accepted(request.request, 3))
        call = service.post(**ASKED, stream=True)
        for _ in range(3):
            assert events((await call.read()).data) == [("ping", {"type": "ping"})]
        (worker,) = service.workers
        (request,) = [sent for sent in worker.sent if isinstance(sent, Submit)]
        worker.say(stepped(Piece(request.request, "Paris", "stop", 1, 0)))
        names = [name for name, _ in events(await rest(call)) if name != "ping"]
        assert (names[0], names[-1]) == ("message_start", "message_stop")


async def test_an_error_within_a_stream_is_an_event(folder: Path) -> None:
    async with puppet_service(folder) as service:
        service.script = begin
        call = service.post(**ASKED, stream=True)
        (name, _), *_ = events((await call.read()).data)
        assert name == "message_start"
        service.workers[0].kill()
        ((name, value),) = events((await call.read()).data)
        assert (name, value["type"], value["error"]["type"]) == ("error", "error", "api_error")
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()


async def test_a_long_prompt_is_refused_in_words_that_anthropics_clients_know(folder: Path) -> None:
    def refuse(worker: PuppetWorker, request: Submit) -> None:
        why = "the prompt has 9 tokens"
        worker.say(RequestRefused(request=request.request, code=TOO_LONG, message=why, param="messages"))

    async with puppet_service(folder) as service:
        service.script = refuse
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await service.post(**ASKED).read()
        assert raised.value.code() == InvalidRequest.grpc_status
        assert raised.value.details() == "prompt is too long: the prompt has 9 tokens"
