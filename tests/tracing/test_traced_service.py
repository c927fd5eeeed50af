"""A service process with tracing enabled, and its shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc

from tests.otlp_collector import collecting

SECONDS = 60
RPC = "allm.text.v1.ChatService/CreateChatCompletion"


@asynccontextmanager
async def answered(folder: Path, collector: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs a service that has just answered a call, with a collector on that port."""
    address = f"unix:{folder / 's'}"
    settings = {
        "ALLM_LISTEN": address,
        "ALLM_METRICS_PORT": "0",
        "ALLM_DRAIN_DELAY_SECONDS": "0",
        "ALLM_OTLP_ENDPOINT": f"http://127.0.0.1:{collector}",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.rpc.tiny_service",
        env={name: value for name, value in os.environ.items() if not name.startswith("ALLM_")} | settings,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = chat_service_pb2_grpc.ChatServiceStub(channel)
            request = chat_service_pb2.CreateChatCompletionRequest(model="four")
            reply = await stub.CreateChatCompletion(request, wait_for_ready=True, timeout=SECONDS)
            assert reply.model == "4 characters"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def stopped(process: asyncio.subprocess.Process) -> int:
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(SECONDS):
        return await process.wait()


async def test_pending_spans_are_sent_before_the_end(tmp_path: Path) -> None:
    with collecting() as collector:
        async with answered(tmp_path, collector.port) as process:
            assert await stopped(process) == 0
        assert [(span.service, span.name) for span in collector.spans] == [("allm", RPC)]


async def test_a_collector_that_says_nothing_does_not_keep_it_from_ending(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with answered(tmp_path, silent.getsockname()[1]) as process:
            assert await stopped(process) == 0
