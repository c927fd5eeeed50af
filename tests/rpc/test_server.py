"""`serve()` in a separate process: health, reflection, drain, lifeline, and clear errors of failed starts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.settings.modality_settings import MIB
from tests.rpc.tiny_service import NAME

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
PING, GOAWAY, ACK = 6, 7, 1  # HTTP/2: frame types, and a flag
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
PINGS = 20


class Service:
    """A running tiny service and a channel to it."""

    def __init__(self, process: asyncio.subprocess.Process, address: str, channel: grpc.aio.Channel) -> None:
        self.process = process
        self.address = address
        self.channel = channel
        self.chat = chat_service_pb2_grpc.ChatServiceStub(channel)
        self.lines: list[dict] = []

    async def log_line(self, message: str) -> dict:
        """Reads the log until a message."""
        while True:
            raw = await self.process.stderr.readline()
            assert raw, f"ended without saying {message!r}: {self.lines}"
            self.lines.append(json.loads(raw))
            if self.lines[-1]["msg"] == message:
                return self.lines[-1]

    async def end(self) -> int:
        """Waits for the process to exit and reads the rest of its log."""
        rest = await self.process.stderr.read()
        self.lines += [json.loads(raw) for raw in rest.splitlines()]
        return await self.process.wait()

    async def health(self, service: str = "") -> int:
        stub = health_pb2_grpc.HealthStub(self.channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
        return answer.status

    def stream(self, until_exists: Path):
        return self.chat.StreamChatCompletion(chat_service_pb2.StreamChatCompletionRequest(model=str(until_exists)))


def environ(**settings: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ALLM_")}
    # The service needs no home, and must not touch the user's.
    return ours | {"ALLM_HOME": os.devnull, "ALLM_METRICS_PORT": "0", "ALLM_DRAIN_DELAY_SECONDS": "0"} | settings


def launch(settings: dict[str, str], pass_fds: tuple[int, ...] = ()):
    return asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.rpc.tiny_service",
        env=environ(**settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=pass_fds,
    )


@asynccontextmanager
async def running(folder: Path, pass_fds: tuple[int, ...] = (), **settings: str) -> AsyncIterator[Service]:
    address = f"unix:{folder / 's'}"
    process = await launch({"ALLM_LISTEN": address} | settings, pass_fds)
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            service = Service(process, address, channel)
            await service.log_line("serving")
            yield service
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def failed_start(**settings: str) -> tuple[int, str]:
    """Returns the exit code and the output of a start that must fail."""
    process = await launch(settings)
    out, err = await process.communicate()
    assert out == b""
    return process.returncode, err.decode()


def closes_on_exec(pid: int, descriptor: int) -> bool:
    info = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text()
    (flags,) = [line.split()[1] for line in info.splitlines() if line.startswith("flags:")]
    return bool(int(flags, 8) & os.O_CLOEXEC)


async def until(condition: Callable) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 (it asks another process)
            await asyncio.sleep(0.02)


async def test_health_is_reported_for_the_process_and_for_each_service(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        assert await service.health() == SERVING
        assert await service.health(NAME) == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.health("allm.nothing.v1.NoService")
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_the_typed_services(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        stub = reflection_pb2_grpc.ServerReflectionStub(service.channel)
        asked = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        listed = {entry.name async for answer in asked for entry in answer.list_services_response.service}
    assert listed == {NAME, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


async def test_a_message_may_be_as_large_as_the_largest_body_and_no_larger(tmp_path: Path) -> None:
    request = chat_service_pb2.CreateChatCompletionRequest
    async with running(tmp_path, ALLM_MAX_BODY_BYTES="5000000") as service:
        answer = await service.chat.CreateChatCompletion(request(model="x" * 5_000_000))
        assert answer.model == "5000000 characters"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.chat.CreateChatCompletion(request(model="x" * (5_000_000 + MIB)))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_sigterm_lets_running_streams_finish_and_refuses_new_calls(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with running(tmp_path, ALLM_DRAIN_DELAY_SECONDS="1") as service:
        stream = service.stream(go)
        assert (await stream.read()).HasField("started")
        service.process.send_signal(signal.SIGTERM)
        await service.log_line("draining")

        async def out_of_service() -> bool:
            return await service.health() == NOT_SERVING and await service.health(NAME) == NOT_SERVING

        async def refused() -> bool:
            async with grpc.aio.insecure_channel(service.address) as another:
                stub = chat_service_pb2_grpc.ChatServiceStub(another)
                try:
                    await stub.CreateChatCompletion(chat_service_pb2.CreateChatCompletionRequest())
                except grpc.aio.AioRpcError as error:
                    return error.code() == grpc.StatusCode.UNAVAILABLE
            return False

        await until(out_of_service)
        await until(refused)
        assert service.process.returncode is None
        go.touch()
        assert (await stream.read()).HasField("finished")
        assert await stream.read() == grpc.aio.EOF
        assert await service.end() == 0
    messages = [line["msg"] for line in service.lines]
    assert messages.index("request done") < messages.index("closed") < messages.index("stopped")


async def test_calls_beyond_the_grace_period_are_cut_off(tmp_path: Path) -> None:
    async with running(tmp_path, ALLM_DRAIN_SECONDS="0.1") as service:
        stream = service.stream(tmp_path / "never")
        assert (await stream.read()).HasField("started")
        service.process.send_signal(signal.SIGTERM)
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await stream.read()
        assert await service.end() == 0
    assert "closed" in [line["msg"] for line in service.lines]


async def test_ctrl_c_stops_it_too(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        service.process.send_signal(signal.SIGINT)
        assert await service.end() == 0
    assert [line["msg"] for line in service.lines][-1] == "stopped"


async def test_the_end_of_the_lifeline_stops_it(tmp_path: Path) -> None:
    """The supervisor may have been killed: nobody writes a message, the pipe only closes."""
    theirs, ours = os.pipe()
    try:
        async with running(tmp_path, (theirs,), ALLM_LIFELINE_FD=str(theirs)) as service:
            assert await service.health() == SERVING
            assert closes_on_exec(service.process.pid, theirs), "workers must not get it"
            os.write(ours, b"x")  # data is not the end
            assert await service.health() == SERVING
            os.close(ours)
            ours = -1
            assert await service.end() == 0
    finally:
        os.close(theirs)
        if ours >= 0:
            os.close(ours)
    messages = [line["msg"] for line in service.lines]
    assert messages.index("the supervisor is gone: stopping") < messages.index("stopped")


async def test_a_socket_left_by_a_killed_service_is_taken_over(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        service.process.kill()
        assert await service.end() == -signal.SIGKILL
    assert (tmp_path / "s").exists()
    async with running(tmp_path) as service:
        assert await service.health() == SERVING


async def test_metrics_are_served_too(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        port = service.lines[-1]["metrics_port"]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        page = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert b"allm_requests_running" in page


async def test_a_bad_setting_stops_the_start_with_one_sentence() -> None:
    assert await failed_start(ALLM_PORT="http") == (
        2,
        "allm: ALLM_PORT='http' is not allowed: it must be a whole number from 0 to 65535\n",
    )


def last_sentence(words: str) -> str:
    """Returns the last line of the output; log lines may precede it."""
    assert "Traceback" not in words
    return words.strip().splitlines()[-1]


async def test_an_unusable_address_stops_the_start_and_is_named(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/missing/s"
    code, words = await failed_start(ALLM_LISTEN=address)
    assert code == 1
    assert last_sentence(words).startswith(f"allm: cannot start: ALLM_LISTEN={address}: the address cannot be used")


async def test_a_taken_port_stops_the_start_and_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, words = await failed_start(ALLM_LISTEN=address)
        assert code == 1
        assert last_sentence(words).startswith(f"allm: cannot start: ALLM_LISTEN={address}: ")
        port = str(taken.getsockname()[1])
        code, words = await failed_start(ALLM_LISTEN=f"unix:{tmp_path}/s", ALLM_METRICS_PORT=port)
        assert code == 1
        assert f"ALLM_METRICS_PORT={port}" in last_sentence(words)


async def test_two_services_cannot_share_an_address(tmp_path: Path) -> None:
    """The kernel would give each service half of the calls."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    async with running(tmp_path, ALLM_LISTEN=address):
        code, words = await failed_start(ALLM_LISTEN=address)
    assert code == 1
    assert f"ALLM_LISTEN={address}" in last_sentence(words)


async def test_pings_are_no_abuse_however_many_and_fast_they_come(tmp_path: Path) -> None:
    """The gateway pings while a request is silent; gRPC's default is to close such a connection, "Too many pings"."""
    async with running(tmp_path) as service:
        reader, writer = await asyncio.open_unix_connection(service.address.removeprefix("unix:"))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS)
        for number in range(PINGS):
            writer.write(b"\0\0\x08\x06\0\0\0\0\0" + number.to_bytes(8, "big"))
        answered: set[int] = set()
        while len(answered) < PINGS:
            kind, flags, payload = await frame(reader)
            assert kind != GOAWAY, payload
            if kind == PING and flags & ACK:
                answered.add(int.from_bytes(payload, "big"))
        writer.close()


async def frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Returns the next HTTP/2 frame: its type, flags and payload (RFC 9113, 4.1)."""
    head = await reader.readexactly(9)
    return head[3], head[4], await reader.readexactly(int.from_bytes(head[:3], "big"))


async def test_a_service_that_cannot_be_built_says_why(tmp_path: Path) -> None:
    code, words = await failed_start(ALLM_LISTEN=f"unix:{tmp_path}/s", ALLM_MODELS="m=/x.gguf")
    assert (code, words) == (1, "allm: cannot start: /x.gguf is broken\n")


async def test_keys_need_public_keys(tmp_path: Path) -> None:
    status, words = await failed_start(ALLM_AUTH="keys", ALLM_HOME=str(tmp_path), ALLM_LISTEN=f"unix:{tmp_path}/s")
    assert status == 1
    assert words.startswith("allm: cannot start: ALLM_IDENTITY_PUBLIC_KEYS_FILE=")
    assert len(words.splitlines()) == 1


async def test_the_home_of_an_older_release_is_made_private(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    async with running(tmp_path, ALLM_HOME=str(home)):
        pass
    assert home.stat().st_mode & 0o777 == 0o700
