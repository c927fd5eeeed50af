"""Ollama's facade with a scripted worker: names, thoughts, figures, and errors within a stream."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.text.engine.messages import Accepted, Piece, Submit
from tests.case import case
from tests.puppet_worker import PuppetWorker
from tests.stack import MODEL
from tests.text.puppet_service import READY, PuppetService, begin, end, puppet_service, stepped

HELLO = [{"role": "user", "content": "Hi"}]
QWEN = "{{ messages[0].content }}{% if enable_thinking is defined and enable_thinking is false %} no{% endif %}<think>"
FIGURES = {
    *("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"),
}


async def lines(call: Any) -> list[Any]:
    return [json.loads(line) for line in b"".join([piece.data async for piece in call]).splitlines()]


async def test_a_stream_is_the_default_and_ends_with_figures(folder: Path) -> None:
    async with puppet_service(folder) as service:
        service.script = end
        call = service.post("Chat", model=f"{MODEL}:latest", messages=HELLO)
        first = await call.read()
        assert first.content_type == "application/x-ndjson"
        text, last = [json.loads(line) for line in first.data.splitlines()]
        assert text["model"] == last["model"] == f"{MODEL}:latest"
        assert text["message"] == {"role": "assistant", "content": "Paris"}
        assert (last["done"], last["done_reason"]) == (True, "stop")
        assert last["prompt_eval_count"] == 3
        assert last["eval_count"] == 1
        assert all(isinstance(last[name], int) and last[name] > 0 for name in FIGURES)
        assert last["load_duration"] + last["prompt_eval_duration"] <= last["total_duration"]
        (whole,) = await lines(service.post("Generate", prompt="Hi", stream=False))
        assert (whole["response"], whole["done"]) == ("Paris", True)
        assert whole.keys() >= FIGURES


async def test_thoughts(folder: Path) -> None:
    prompts: list[Any] = []

    def think(worker: PuppetWorker, request: Submit) -> None:
        prompts.append(request.prompt)
        pieces = [Piece(request.request, text, None, 1, 0) for text in ("I see", "</think>", "Paris")]
        worker.say(Accepted(request.request, 3), stepped(*pieces, Piece(request.request, "", "stop", 4, 2)))

    async with puppet_service(folder, replace(READY, chat_template=QWEN)) as service:
        service.script = think
        (whole,) = await lines(service.post("Chat", messages=HELLO, stream=False))
        assert whole["message"] == {"role": "assistant", "content": "Paris", "thinking": "I see"}
        *told, _ = await lines(service.post("Generate", prompt="Hi", think=True))
        assert [(line["response"], line.get("thinking")) for line in told] == [("", "I see"), ("Paris", None)]
        await lines(service.post("Chat", messages=HELLO, think=False))
        assert prompts == ["Hi<think>", "Hi<think>", "Hi no<think>"], "it thinks unless it is told not to"


async def test_calls(folder: Path) -> None:
    """Each is one line with whole arguments; results reach the model in the conversation."""
    prompts: list[Any] = []

    def call(worker: PuppetWorker, request: Submit) -> None:
        prompts.append(request.prompt)
        texts = ('<tool_call>\n{"name": "f", "argu', 'ments": {"a": 1}}\n</tool_call>', "\n")
        pieces = [Piece(request.request, text, None, 1, 0) for text in texts]
        worker.say(Accepted(request.request, 3), stepped(*pieces, Piece(request.request, "", "stop", 4, 0)))

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    async with puppet_service(folder) as service:
        service.script = call
        *parts, last = await lines(service.post("Chat", messages=HELLO, tools=tools))
        (called,) = [part["message"]["tool_calls"] for part in parts if "tool_calls" in part["message"]]
        assert [each["function"] for each in called] == [{"index": 0, "name": "f", "arguments": {"a": 1}}]
        assert (last["done_reason"], last["message"]["content"]) == ("stop", "")
        (whole,) = await lines(service.post("Chat", messages=HELLO, tools=tools, stream=False))
        assert [each["function"] for each in whole["message"]["tool_calls"]] == [each["function"] for each in called]
        result = {"role": "tool", "content": "the result", "tool_name": "f"}
        await lines(service.post("Chat", messages=[*HELLO, whole["message"], result], tools=tools))
        assert prompts[0] == prompts[1]
        assert "the result" in prompts[2]
        assert '{"a": 1}' in prompts[2]


async def test_what_has_no_effect_is_named(folder: Path) -> None:
    async with puppet_service(folder) as service:
        service.script = end
        options = {"num_ctx": 8192, "made_up": 1, "temperature": 0, "stop": "x"}
        call = service.post("Chat", messages=HELLO, options=options, format="json", truncate=True, unknown=1)
        await lines(call)
        headers = dict(await call.initial_metadata())
        expected = "unknown, options.made_up, options.num_ctx, truncate, options.stop"
        assert headers["x-allm-ignored-parameters"] == expected


async def test_a_request_without_a_prompt_loads(folder: Path) -> None:
    async with puppet_service(folder) as service:
        for method in ("Chat", "Generate"):
            (unloaded,) = await lines(service.post(method, keep_alive=0))
            assert (unloaded["done"], unloaded["done_reason"]) == (True, "unload")
        assert not service.workers
        (loaded,) = await lines(service.post("Chat"))
        assert (loaded["message"]["content"], loaded["done_reason"]) == ("", "load")
        assert len(service.workers) == 1


async def test_a_request_says_how_long_its_model_stays(folder: Path) -> None:
    async with puppet_service(folder) as service:
        service.script = end

        def keep_alive() -> float | None:
            (slot,) = service.manager.slots()
            return slot.keep_alive

        for method, given, seconds in (
            ("Chat", "5m", 300),
            ("Generate", -1, math.inf),
            ("Chat", None, math.inf),
            ("Generate", 0, 0),
            ("Chat", None, None),
        ):
            with case(method=method, given=given):
                await lines(service.post(method, messages=HELLO, prompt="Hi", keep_alive=given))
                assert keep_alive() == seconds
        await lines(service.post("Chat", keep_alive=60))
        assert keep_alive() == 60
        await lines(service.post("Chat", keep_alive=0))
        assert keep_alive() == 0
        assert len(service.workers) == 1


async def test_an_error_within_a_stream_is_a_line(folder: Path) -> None:
    async with puppet_service(folder) as service:
        service.script = begin
        call = service.post("Chat", messages=HELLO)
        assert b"Paris" in (await call.read()).data
        service.workers[0].kill()
        error = json.loads((await call.read()).data)
        assert error.keys() == {"error"}
        assert isinstance(error["error"], str)
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()


async def refused(service: PuppetService, method: str, **body: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await service.post(method, **body).read()
    return raised.value.details() or ""


async def test_refusals(folder: Path) -> None:
    async with puppet_service(folder) as service:
        assert "does not support reasoning" in await refused(service, "Chat", messages=HELLO, think=True)
        assert "'keep_alive'" in await refused(service, "Chat", messages=HELLO, keep_alive="soon")
        assert "'suffix'" in await refused(service, "Generate", prompt="a", suffix="b")
        assert "for chat, not for embeddings" in await refused(service, "Embed", input="a")
        assert "for chat, not for embeddings" in await refused(service, "EmbedPrompt", prompt="a")
