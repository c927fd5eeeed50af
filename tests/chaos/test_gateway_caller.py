"""The defects that the callers of the fault injection notice: if they missed one, every fault would look harmless."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from PIL import Image

from tests.chaos.gateway_caller import TEXT, TYPED, WHOLE, GatewayCaller
from tests.chaos.known_answers import KnownAnswers, KnownText
from tests.chaos.outcome import Attempt, Outcome, Tally
from tests.chaos.steady_load import attempt
from tests.stack import Stack

KNOWN = KnownAnswers((KnownText("Count.", 3, "1, 2"),), Path("a.wav"), [], Image.new("RGB", (1, 1)))
HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = "data: [DONE]\n\n"
REFUSAL = {"error": {"message": "why", "type": "server_error", "param": None, "code": "internal"}}
END = "0\r\n\r\n"


@asynccontextmanager
async def answering(answer: Callable[[dict], str | None]) -> AsyncIterator[GatewayCaller]:
    """A caller of a server that answers a body with the result of `answer`, and hangs up; None: it sends nothing."""

    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(cast(asyncio.Task[None], asyncio.current_task()))
        with contextlib.closing(writer), contextlib.suppress(OSError):
            await one(reader, writer)
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"PRI "):  # gRPC
            return
        (length,) = (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        reported = answer(json.loads(await reader.readexactly(length)))
        if reported is None:
            await reader.read()
        else:
            writer.write(reported.encode())

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    caller = GatewayCaller(Stack(cast(subprocess.Popen[bytes], None), Path(), port), KNOWN)
    try:
        yield caller
    finally:
        await caller.close()
        server.close()
        await asyncio.gather(*serving)


def chunk(text: str) -> str:
    return f"{len(text.encode()):x}\r\n{text}\r\n"


def event(text: str) -> str:
    return chunk(f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}\n\n")


def asked(body: dict) -> str:
    """Returns the text that a stream must contain."""
    text = body["response_format"]["json_schema"]["schema"]["properties"]["text"]["const"]
    return json.dumps({"text": text})


async def outcome(kind: str, answer: Callable[[dict], str | None], seconds: float = 60) -> Attempt:
    async with answering(answer) as caller:
        return await attempt(kind, lambda: caller.call(kind), seconds)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda body: HEAD + event(asked(body)) + chunk(DONE) + END, Outcome.COMPLETED),
        (lambda body: HEAD + event(asked(body)) + END, Outcome.LOST),  # no terminal event
        (lambda body: HEAD + event(asked(body)[:-4]) + chunk(DONE) + END, Outcome.LOST),
        (lambda body: HEAD + event(asked(body).replace("number", "letter")) + chunk(DONE) + END, Outcome.LOST),
        (lambda body: HEAD + event(asked(body)), Outcome.CUT),
        (lambda body: HEAD + event("{") + chunk(f"data: {json.dumps(REFUSAL)}\n\n") + END, Outcome.REFUSED),
        (lambda body: "", Outcome.CUT),
    ],
)
async def test_a_stream_is_read_to_its_last_event(answer: Callable[[dict], str], expected: Outcome) -> None:
    assert (await outcome(TEXT, answer)).outcome is expected


def response(status: int, body: object) -> str:
    text = json.dumps(body)
    return f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n{text}"


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (response(200, {"choices": [{"message": {"content": "1, 2"}}]}), Outcome.COMPLETED),
        (response(200, {"choices": [{"message": {"content": "1, 3"}}]}), Outcome.LOST),
        (response(500, REFUSAL), Outcome.REFUSED),
        (response(503, {"error": {**REFUSAL["error"], "code": "grpc_14"}}), Outcome.LOST),
        (response(503, {"error": {**REFUSAL["error"], "message": ""}}), Outcome.LOST),
        ("HTTP/1.1 503 X\r\ncontent-length: 4\r\n\r\noops", Outcome.LOST),
    ],
)
async def test_an_error_must_name_its_cause(reported: str, expected: Outcome) -> None:
    assert (await outcome(WHOLE, lambda body: reported)).outcome is expected


async def test_a_request_without_an_end_hangs() -> None:
    assert (await outcome(WHOLE, lambda body: None, seconds=0.2)).outcome is Outcome.HUNG


async def test_a_broken_connection_is_an_end_only_where_something_died() -> None:
    made = await outcome(TYPED, lambda body: "")
    assert made.outcome is Outcome.CUT
    assert Tally([made]).count(Outcome.CUT) == 1
    assert Tally([made], may_cut=False).count(Outcome.LOST) == 1
