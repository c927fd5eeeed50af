"""Envoy's metrics on their own port, which exposes nothing else of the admin interface."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.admin import EnvoyAdmin
from gateway.process import envoy_command
from gateway.render import Gateway, render, write_config
from gateway.stats import LIVE, PATH, READY, wait_answer
from tests.case import case
from tests.gateway.envoy_process import NOWHERE, START_SECONDS, gateway_settings
from tests.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def port(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[int]:
    """Runs an Envoy without services behind it; yields its metrics port."""
    folder, port = tmp_path_factory.mktemp("envoy"), free_port()
    settings = replace(gateway_settings(port=free_port()), stats_port=port)
    admin = EnvoyAdmin(folder / "admin.sock")
    config = write_config(Gateway(settings, (NOWHERE,), NOWHERE, f"unix:{admin.socket}", folder))
    with (folder / "log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(*envoy_command(config, cores=1), stdout=output, stderr=output)
    try:
        async with asyncio.timeout(START_SECONDS):
            while not await admin.is_ready():
                assert process.returncode is None, (folder / "log").read_text()
                await asyncio.sleep(0.05)
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def ask(port: int, request: str) -> tuple[int, str]:
    """Sends a request line; returns status and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        return int(head.split(" ")[1]), body
    finally:
        writer.close()


async def test_prometheus_gets_what_envoy_counts(port: int) -> None:
    status, page = await ask(port, f"GET {PATH}")
    assert status == 200
    assert "# TYPE envoy_cluster_membership_healthy gauge" in page
    assert 'envoy_http_conn_manager_prefix="edge"' in page


async def test_probes_are_answered_without_the_services(port: int) -> None:
    status, page = await ask(port, f"GET {LIVE}")
    assert (status, "server.live: 1" in page) == (200, True)
    assert (await ask(port, f"GET {READY}"))[0] == 200


async def test_the_supervisors_question_is_answered_unless_envoy_hangs(port: int) -> None:
    await asyncio.wait_for(wait_answer("127.0.0.1", port), 60)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError):
        await asyncio.wait_for(wait_answer("127.0.0.1", silent.getsockname()[1]), 0.2)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wait_answer("127.0.0.1", free_port()), 0.2)


async def test_nothing_else_comes_through(port: int) -> None:
    for request_line in [
        "POST /quitquitquit",
        f"POST {PATH}",
        f"POST {LIVE}",
        "GET /",
        "GET /config_dump",
        "GET /stats",
        f"GET {PATH}/",
        f"GET {PATH}/../../config_dump",
        f"GET {PATH}%2F..%2F..%2Fconfig_dump",
        "POST /healthcheck/fail",
        "GET /v1/models",
        f"POST {LIVE}",
        f"GET {LIVE}/../config_dump",
    ]:
        with case(request_line=request_line):
            status, page = await ask(port, request_line)
            assert status in (400, 404)
            assert not page
            assert (await ask(port, f"GET {PATH}"))[0] == 200, "Envoy runs on"


async def test_without_a_port_the_listener_is_off(tmp_path: Path) -> None:
    gateway = Gateway(gateway_settings(port=1), (NOWHERE,), NOWHERE, f"unix:{tmp_path}/admin.sock", tmp_path)
    config = render(gateway, tmp_path / "transcoded.pb")
    assert PATH not in config
    assert '"metrics"' not in config
