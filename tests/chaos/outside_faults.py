"""Faults outside the processes: the disk, the hub, a model's file, the clients' connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.models.demo.text_demo import bundled_model
from tests.chaos.chaos_stack import ChaosStack, bundled
from tests.chaos.fault import Fault, now
from tests.chaos.gateway_caller import FETCHED, FRAIL, STORED, TEXT, TYPED
from tests.chaos.process_faults import WORDS, until
from tests.chaos.stack_members import kill, service_pid, worker_pids
from tests.chaos.steady_load import SteadyLoad
from tests.stack import MODEL, SPEECH_MODEL

CUT_BYTES = 20_000_000
HEADER_BYTES = 8 * 1024 * 1024  # the reads that register a model get smaller answers, which are spared
CUTS = 3
FILE = "small.gguf"
STORING = {TEXT: 2, TYPED: 1, STORED: 1}
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST, even with unread data
PIECE = 1024 * 1024


def disk_full() -> Fault:
    """Fills the disk that holds ALLM_HOME, and kills the worker, so that the model must be loaded again."""

    async def inject(stack: ChaosStack, load: SteadyLoad) -> float:
        assert stack.disk, "file systems can only be mounted by the superuser"
        with _filled(stack.disk):
            since = now()
            await load.until(lambda: load.ended(STORED, since=since) >= 2)  # with the model in memory
            for pid in worker_pids(stack.operator.stack, "text"):
                kill(pid)
            since = now()
            await load.until(lambda: load.ended(since=since) >= 3 * load.callers)
        return now()

    return Fault("the disk is full, and the worker is killed", inject, STORING)


def disk_full_at_start() -> Fault:
    """Fills the disk, and then kills a service, which must start again."""

    async def inject(stack: ChaosStack, load: SteadyLoad) -> float:
        assert stack.disk, "file systems can only be mounted by the superuser"
        pid = service_pid(stack.operator.stack, "text")
        with _filled(stack.disk):
            kill(pid)
            since = now()
            await load.until(lambda: load.ended(since=since, failed=True) >= 20 * load.callers)
        start = now()
        await until(lambda: service_pid(stack.operator.stack, "text") not in (0, pid))
        return start

    return Fault("the disk is full, and the service is killed", inject, STORING, may_cut=True)


def hub_cut() -> Fault:
    """Cuts the hub's connection in the middle of a download, several times. Other requests are spared."""

    async def prepare(stack: ChaosStack) -> None:
        folder = stack.operator.root.parent / "hub"
        await asyncio.to_thread(bundled, folder)
        await asyncio.to_thread(stack.hub.add, "org/small", folder)
        gate = stack.hub.gate(FILE, after_bytes=CUT_BYTES // 2)
        stack.hub.cut(FILE, after_bytes=CUT_BYTES, times=CUTS, larger_than=HEADER_BYTES)
        await asyncio.to_thread(stack.operator.taken, FETCHED, "hf://org/small", "gguf")
        await asyncio.to_thread(gate.wait_reached)

    async def inject(stack: ChaosStack, load: SteadyLoad) -> float:
        start = now()
        gate = stack.hub.gate_of(FILE)
        assert gate
        gate.open()
        await load.until(lambda: len(stack.hub.asked(FILE, cdn=True)) > CUTS)
        return start

    load = {TEXT: 2, TYPED: 1, FETCHED: 1}
    late, spared = frozenset({FETCHED}), frozenset({TEXT, TYPED})
    return Fault("the hub is cut in a download", inject, load, spared=spared, late=late, prepare=prepare)


def file_damaged() -> Fault:
    """Truncates a model's file to half while it is served, and repairs it later. Other models are spared."""

    async def prepare(stack: ChaosStack) -> None:
        path = await asyncio.to_thread(bundled, stack.operator.root / FRAIL)
        await asyncio.to_thread(stack.operator.taken, FRAIL, path, "gguf")
        await asyncio.to_thread(stack.operator.until_state, FRAIL, "ready")

    async def inject(stack: ChaosStack, load: SteadyLoad) -> float:
        path = stack.operator.root / FRAIL / FILE
        os.truncate(path, path.stat().st_size // 2)
        await asyncio.to_thread(stack.operator.verb, FRAIL, "unload")  # if all of it had been read before
        since = now()
        await load.until(lambda: load.ended(FRAIL, since=since, failed=True) >= 3)
        whole = path.with_suffix(".whole")
        source = bundled_model()
        assert source is not None
        await asyncio.to_thread(shutil.copy, source, whole)
        whole.replace(path)
        return now()

    load = {TEXT: 2, FRAIL: 1}
    return Fault("a model's file is cut short", inject, load, spared=frozenset({TEXT}), prepare=prepare)


def clients_gone(count: int) -> Fault:
    """Clients hang up or reset their connections, in the middle of bodies and answers. Other clients are spared."""

    async def inject(stack: ChaosStack, load: SteadyLoad) -> float:
        chance = random.Random(7)  # noqa: S311 - moments to go away
        places = asyncio.Semaphore(8)
        address = ("127.0.0.1", stack.operator.stack.port)

        async def one() -> None:
            async with places:
                await _go_away(address, chance)

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(one())
        return now()

    return Fault(f"{count} connections dropped", inject, WORDS, spared=frozenset(WORDS))


async def _go_away(address: tuple[str, int], chance: random.Random) -> None:
    """Runs a client that sends all or part of a request, and disconnects at a random moment."""
    reader, writer = await asyncio.open_connection(*address)
    request = chance.choice((_chat, _upload))(address)
    part = chance.choice((1.0, 1.0, chance.random()))
    writer.write(request[: int(len(request) * part)])
    with contextlib.suppress(OSError, TimeoutError):
        await writer.drain()
        async with asyncio.timeout(chance.uniform(0, 1.0)):
            while await reader.read(chance.randint(1, 4096)):
                pass
    if chance.random() < 0.5:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _chat(address: tuple[str, int]) -> bytes:
    messages = [{"role": "user", "content": "Tell me everything."}]
    body = {"model": MODEL, "messages": messages, "stream": True, "max_tokens": 200}
    return _post(address, "chat/completions", "application/json", json.dumps(body).encode())


def _upload(address: tuple[str, int]) -> bytes:
    parts = [
        f'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\n{SPEECH_MODEL}\r\n--x\r\n'.encode(),
        b'content-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + bytes(200_000) + b"\r\n--x--\r\n",
    ]
    return _post(address, "audio/transcriptions", "multipart/form-data; boundary=x", b"".join(parts))


def _post(address: tuple[str, int], path: str, kind: str, body: bytes) -> bytes:
    host, port = address
    head = f"POST /v1/{path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


@contextmanager
def _filled(disk: Path) -> Iterator[None]:
    filler = disk / "filler"
    try:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            for size in (PIECE, 4096):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass
        yield
    finally:
        filler.unlink()
