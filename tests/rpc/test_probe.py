"""The probe command of container engines: its exit status reports the health of a service."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.rpc.probe import LIVENESS, NOT_SERVING, READINESS, SERVING, STARTUP, NotServing, Probes, ask, main
from tests.ports import free_port
from tests.rpc.test_server import Service, failed_start, last_sentence, running


async def test_each_probe_reports_its_own_state() -> None:
    port = free_port()
    async with Probes(f"127.0.0.1:{port}") as probes:

        async def reported(name: str) -> bool:
            try:
                # The setting as containers have it: no address to connect to.
                await asyncio.to_thread(ask, f"0.0.0.0:{port}", name)
            except NotServing:
                return False
            return True

        assert [await reported(name) for name in (STARTUP, READINESS, LIVENESS)] == [False, False, True]
        await probes.ready()
        assert [await reported(name) for name in (STARTUP, READINESS, LIVENESS)] == [False, True, True]
        await probes.started()
        assert [await reported(name) for name in (STARTUP, READINESS, LIVENESS)] == [True, True, True]
        await probes.leaving()
        assert [await reported(name) for name in (STARTUP, READINESS, LIVENESS)] == [True, False, True]


@pytest.mark.parametrize(
    ("listen", "reported"), [("", "ALLM_HEALTH_LISTEN is not set"), ("127.0.0.1:1", "does not answer")]
)
def test_missing_listener_is_reported(listen: str, reported: str) -> None:
    with pytest.raises(NotServing, match=reported):
        ask(listen, READINESS)


def test_the_exit_status_reports_the_result(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["health"]) == 2
    monkeypatch.setenv("ALLM_HEALTH_LISTEN", f"127.0.0.1:{free_port()}")
    assert main([READINESS]) == 1
    assert "does not answer" in capfd.readouterr().err
    monkeypatch.setenv("ALLM_LOG_LEVEL", "loud")
    assert main([READINESS]) == 1
    assert "ALLM_LOG_LEVEL" in capfd.readouterr().err


async def test_it_is_a_command() -> None:
    async with Probes(f"127.0.0.1:{(port := free_port())}"):
        command = [sys.executable, "-m", "services.rpc.probe", LIVENESS]
        environ = {"ALLM_HEALTH_LISTEN": f"127.0.0.1:{port}"}
        done = await asyncio.to_thread(subprocess.run, command, env=environ, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")


SECONDS = 60


@asynccontextmanager
async def probed(folder: Path, **settings: str) -> AsyncIterator[tuple[Service, grpc.aio.Channel]]:
    """Yields a service, and a channel to its probes."""
    address = f"127.0.0.1:{free_port()}"
    async with (
        asyncio.timeout(SECONDS),
        running(folder, ALLM_HEALTH_LISTEN=address, **settings) as service,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield service, channel


async def reported(channel: grpc.aio.Channel, name: str) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=SECONDS)).status


async def test_started_is_who_has_loaded_what_it_should(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    async with probed(tmp_path, ALLM_PRELOAD=str(loaded)) as (_, channel):
        assert [await reported(channel, name) for name in (STARTUP, READINESS, LIVENESS, "")] == [
            NOT_SERVING,
            SERVING,
            SERVING,
            SERVING,
        ]
        loaded.touch()
        while await reported(channel, STARTUP) != SERVING:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)


async def test_draining_service_is_alive_but_not_ready(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with probed(tmp_path) as (service, channel):
        stream = service.stream(go)
        assert (await stream.read()).HasField("started")
        assert await reported(channel, READINESS) == SERVING
        service.process.send_signal(signal.SIGTERM)
        await service.log_line("draining")
        assert [await reported(channel, name) for name in (READINESS, "", LIVENESS)] == [
            NOT_SERVING,
            NOT_SERVING,
            SERVING,
        ]
        go.touch()
        assert (await stream.read()).HasField("finished")
        assert await service.end() == 0


async def test_blocked_event_loop_does_not_answer(tmp_path: Path) -> None:
    async with probed(tmp_path) as (service, channel):
        assert await reported(channel, LIVENESS) == SERVING
        service.process.send_signal(signal.SIGSTOP)
        stub = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service=LIVENESS), timeout=1)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        service.process.send_signal(signal.SIGCONT)
        assert await reported(channel, LIVENESS) == SERVING


async def test_nothing_else_is_served_there(tmp_path: Path) -> None:
    async with probed(tmp_path) as (_, channel):
        stub = chat_service_pb2_grpc.ChatServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.CreateChatCompletion(chat_service_pb2.CreateChatCompletionRequest())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reported(channel, "another")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_an_address_that_is_taken_stops_the_start_and_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, words = await failed_start(ALLM_LISTEN=f"unix:{tmp_path}/s", ALLM_HEALTH_LISTEN=address)
    assert code == 1
    assert last_sentence(words).startswith(f"allm: cannot start: ALLM_HEALTH_LISTEN={address}: ")
