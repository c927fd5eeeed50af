"""`allm gateway`: invalid settings, graceful shutdown, and a report when Envoy has died."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from google.api.httpbody_pb2 import HttpBody
from trustme import CA

from services.cli.serve.gateway import describe
from services.settings.setting import SettingError
from services.settings.settings import load_settings
from tests.cluster.certificates import issue
from tests.cluster.gateway_command import GatewayCommand, gateway_command, refused
from tests.gateway.upstream import Upstream, event
from tests.gateway.wire import posting, send
from tests.ports import free_port
from tests.processes import has_ended

CHAT = "/v1/chat/completions"
TEXT = {"ALLM_GATEWAY_TEXT": "127.0.0.1:1"}
SECONDS = 120
DELAY_SECONDS = 8  # far more than a health check and a request take, on any machine


@pytest.mark.parametrize(
    ("settings", "variable"),
    [
        ({}, "ALLM_GATEWAY_TEXT=''"),
        ({"ALLM_GATEWAY_TEXT": "text"}, "ALLM_GATEWAY_TEXT='text'"),
        ({"ALLM_GATEWAY_TEXT": "127.0.0.1:1,text:0"}, "ALLM_GATEWAY_TEXT='text:0'"),
        (TEXT | {"ALLM_GATEWAY_AUDIO": "unix:here"}, "ALLM_GATEWAY_AUDIO='unix:here'"),
        (TEXT | {"ALLM_CATALOG": "catalog"}, "ALLM_CATALOG='catalog'"),
        (TEXT | {"ALLM_AUTH": "keys", "ALLM_AUTHORIZER": "here"}, "ALLM_AUTHORIZER='here'"),
        (TEXT | {"ALLM_GATEWAY_TEXT_GROUPS": "large=127.0.0.1:1"}, "ALLM_GATEWAY_TEXT_GROUPS='large'"),
        (TEXT | {"ALLM_TEXT_GROUP_MODELS": "large=m"}, "ALLM_GATEWAY_TEXT_GROUPS=''.*'large' is missing"),
    ],
)
def test_settings_are_refused_by_name(tmp_path: Path, settings: dict[str, str], variable: str) -> None:
    with pytest.raises(SettingError, match=f"^{variable}"):
        describe(load_settings(settings), tmp_path)


def test_without_keys_it_stays_on_this_machine(tmp_path: Path) -> None:
    everywhere = TEXT | {"ALLM_HOST": "::"}
    assert describe(load_settings(everywhere), tmp_path).settings.host == "127.0.0.1"
    for auth in ("open", "keys"):
        assert describe(load_settings(everywhere | {"ALLM_AUTH": auth}), tmp_path).settings.host == "::"


async def test_a_start_that_is_refused_says_so_in_one_sentence(tmp_path: Path) -> None:
    made = issue(tmp_path, CA(), "localhost").edge()
    code, words = await refused(tmp_path, **TEXT, ALLM_TLS_CERT=made["ALLM_TLS_CERT"])
    assert (code, words.count("\n")) == (2, 1)
    assert words.startswith("allm: ALLM_TLS_KEY='' is not allowed: ")


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        code, words = await refused(tmp_path, **TEXT, ALLM_PORT=str(port))
    assert (code, "ALLM_PORT" in words) == (1, True)


async def test_sigterm_lets_running_streams_end_and_serves_until_others_know(tmp_path: Path) -> None:
    """Health fails immediately, new requests are still served for the delay, and no stream is cut."""
    go = asyncio.Event()

    async def chat(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        yield event("first")
        if b"wait" in request.data:
            await go.wait()
        yield event("last")

    upstream, text = Upstream(chat), f"127.0.0.1:{free_port()}"
    await upstream.start(text)
    settings = {"ALLM_GATEWAY_TEXT": text, "ALLM_DRAIN_DELAY_SECONDS": str(DELAY_SECONDS)}
    try:
        async with asyncio.timeout(SECONDS), gateway_command(tmp_path, **settings) as gateway:
            await gateway.healthy()
            async with posting(gateway.port, CHAT, b'{"wait": 1}') as reader:
                await reader.readuntil(b"first")
                gateway.process.send_signal(signal.SIGTERM)
                await gateway.said("draining")
                while await gateway.healthz() != 503:
                    pass
                reply = await send(gateway.port, "POST", CHAT, body=b"{}")
                assert (reply.status, reply.headers["connection"]) == (200, "close")
                await closed(gateway)
                assert gateway.process.returncode is None, "a stream still runs"
                go.set()
                await reader.readuntil(b"last")
            assert await gateway.process.wait() == 0
    finally:
        await upstream.stop()
    assert gateway.lines()[-1]["msg"] == "stopped"


async def closed(gateway: GatewayCommand) -> None:
    """Waits until it accepts no more connections."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        except ConnectionRefusedError:
            return
        writer.close()
        await asyncio.sleep(0.05)


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    settings = TEXT | {"ALLM_DRAIN_DELAY_SECONDS": "600"}
    async with asyncio.timeout(SECONDS), gateway_command(tmp_path, **settings) as gateway:
        gateway.process.send_signal(signal.SIGTERM)
        await gateway.said("draining")
        gateway.process.send_signal(signal.SIGTERM)
        assert await gateway.process.wait() == 0


async def test_it_ends_when_envoy_does_and_envoy_when_it_does(tmp_path: Path) -> None:
    async with asyncio.timeout(SECONDS), gateway_command(tmp_path, **TEXT) as gateway:
        (envoy,) = psutil.Process(gateway.process.pid).children()
        envoy.kill()
        assert await gateway.process.wait() == 1
    assert "allm: Envoy was killed by SIGKILL" in gateway.log.read_text()
    async with asyncio.timeout(SECONDS), gateway_command(tmp_path, **TEXT) as gateway:
        (envoy,) = psutil.Process(gateway.process.pid).children()
        gateway.process.kill()
        while not has_ended(envoy):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
