"""The services of a stack by its settings; the tests of `allm serve` run them."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services.cli.serve.stack import AUDIO, CATALOG, IMAGE, TEXT, Stack
from services.cli.serve.stack import names as replica_names
from services.settings.settings import load_settings


@pytest.fixture
def folder() -> Iterator[Path]:
    """Creates a folder with a short path: pytest's own paths are too long for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="allm-test-") as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("replicas", "names"),
    [
        ((1, 1, 1), ["catalog", "text", "audio", "image", "gateway"]),
        ((1, 0, 0), ["catalog", "text", "gateway"]),
        ((1, 0, 1), ["catalog", "text", "image", "gateway"]),
        ((2, 2, 2), ["catalog", "text-1", "text-2", "audio-1", "audio-2", "image-1", "image-2", "gateway"]),
    ],
)
def test_the_gateway_starts_last_and_knows_all_others(
    tmp_path: Path, replicas: tuple[int, int, int], names: list[str]
) -> None:
    names_of = ("ALLM_TEXT_REPLICAS", "ALLM_AUDIO_REPLICAS", "ALLM_IMAGE_REPLICAS")
    environ = {"ALLM_HOME": str(tmp_path), **dict(zip(names_of, map(str, replicas), strict=True))}
    ports = {name: 9000 + at for at, name in enumerate(names[:-1])}
    settings = load_settings({**environ, "ALLM_PORT": "8081"})
    stack = Stack(settings, tmp_path, {**environ, "ALLM_PORT": "0"}, ports, print)
    services = stack.services()
    assert [service.program.name for service in services] == names
    config = (tmp_path / "envoy.yaml").read_text()
    for service in services[:-1]:
        name, environ = service.program.name, service.program.environ
        module = service.program.command[-1]
        assert module == f"services.{name.partition('-')[0]}"
        assert environ["ALLM_LISTEN"] == f"unix:{tmp_path / name}.sock"
        assert environ["ALLM_METRICS_PORT"] == str(ports[name])
        assert load_settings(environ).image.public_url == "http://127.0.0.1:8081", "the port that the gateway has"
        assert f'"path": "{tmp_path / name}.sock"' in config
    assert set(stack.metrics_urls) == set(names[:-1])
    text, audio, image = replicas
    found = replica_names(TEXT, text) + replica_names(AUDIO, audio) + replica_names(IMAGE, image)
    assert found == names[1:-1]


def question_to_the_catalog(folder: Path) -> Callable[[], Awaitable[None]]:
    """Returns the supervisor's question whether the catalog lives; its socket is in the folder."""
    settings = load_settings({"ALLM_HOME": str(folder), "ALLM_AUDIO_REPLICAS": "0", "ALLM_IMAGE_REPLICAS": "0"})
    first, *_ = Stack(settings, folder, {}, {CATALOG: 1, "text": 2}, print).services()
    assert first.program.name == CATALOG
    return first.wait_answer


async def test_a_service_lives_while_it_answers_and_while_it_drains(folder: Path) -> None:
    ask, address = question_to_the_catalog(folder), f"unix:{folder / CATALOG}.sock"
    server, status = grpc.aio.server(), health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    server.add_insecure_port(address)
    await server.start()
    await status.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    async with asyncio.timeout(60), grpc.aio.insecure_channel(address) as channel:
        await ask()
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its type stubs lack Watch
        running = stub.Watch(health_pb2.HealthCheckRequest())
        await running.read()
        stopping = asyncio.create_task(server.stop(60))
        while (folder / f"{CATALOG}.sock").exists():  # noqa: ASYNC110 - a file has no events
            await asyncio.sleep(0.01)
        await ask()
        assert not stopping.done()
        running.cancel()
        await stopping


async def test_a_service_that_only_takes_connections_does_not_live(folder: Path) -> None:
    ask = question_to_the_catalog(folder)
    with socket.socket(socket.AF_UNIX) as silent, pytest.raises(TimeoutError):
        silent.bind(str(folder / f"{CATALOG}.sock"))
        silent.listen()
        await asyncio.wait_for(ask(), 0.5)
