"""Floods by one client: each meets a limit of its own, and a bystander's chats all succeed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.api.httpbody_pb2 import HttpBody
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.attack.edge import CLOSED, HELD, MIB, Hold, health_watches, idle_connections, unfinished_bodies
from gateway import render
from gateway.stats import LIVE, PATH, READY
from services.settings.gateway_settings import GatewaySettings
from tests.gateway.audio_upstream import AudioUpstream
from tests.gateway.envoy_process import NOWHERE, RunningGateway, gateway_settings, running_gateway
from tests.gateway.test_audio_routes import uploading
from tests.gateway.upstream import Upstream, event
from tests.gateway.wire import Reply, send
from tests.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="session")
CHAT = "/v1/chat/completions"
ASKED = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
CONNECTIONS = 40
ADDRESS_CONNECTIONS = 12
CONNECTED = "http.edge.downstream_cx_active"
LOCAL = "local.sock"
HEAP = 64 * MIB
HELD_BYTES = HEAP // 2  # the most of unfinished bodies


@dataclass(frozen=True)
class Tight:
    """A gateway with small limits, and the services behind it."""

    gateway: RunningGateway
    settings: GatewaySettings
    text: Upstream
    audio: AudioUpstream

    @property
    def port(self) -> int:
        return self.gateway.port

    async def outlives_a_body(self) -> Reply:
        """Waits until a request has ended because the rest of its body never came; returns the answer."""
        async with asyncio.timeout(60), opened(self.port) as (reader, writer):
            head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\nconnection: close\r\n\r\n"
            writer.write(head.encode() + b"{}")
            status, _, rest = (await reader.read()).partition(b"\r\n")
        return Reply(int(status.split(b" ")[1]), {"content-type": "application/json"}, rest.partition(b"\r\n\r\n")[2])


@asynccontextmanager
async def opened(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tight(socket_folder: Path) -> AsyncIterator[Tight]:
    (folder := socket_folder / "tight").mkdir()
    text, audio = Upstream(), AudioUpstream()
    await text.start(text_socket := f"unix:{folder / 'text.sock'}")
    await audio.start(audio_socket := f"unix:{folder / 'audio.sock'}")
    limits = {"max_connections": CONNECTIONS, "first_byte_seconds": 1.0, "body_seconds": 1, "heap_bytes": HEAP}
    settings = replace(gateway_settings(), stats_port=free_port(), **limits)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(render, "WATCH_SECONDS", "0.5s")
            patch.setattr(render, "LEAST_IDLE_SECONDS", 0.2)
            running = running_gateway(folder, (text_socket,), NOWHERE, settings, audio=(audio_socket,))
            async with running as gateway:
                yield Tight(gateway, settings, text, audio)
    finally:
        await text.stop()
        await audio.stop()


@asynccontextmanager
async def under(attack: Callable[[Hold], Awaitable[Counter[str]]]) -> AsyncIterator[asyncio.Future[Counter[str]]]:
    """Runs the block while the attacker holds all that it can get; the future has what the attacker saw."""
    hold = Hold()
    seen = asyncio.ensure_future(attack(hold))
    try:
        async with asyncio.timeout(60):
            await hold.full.wait()
        yield seen
    finally:
        hold.over.set()
        await seen


async def chats(port: int, number: int = 10, source: str = "127.0.0.1") -> set[int]:
    """Returns the statuses of a bystander's chats, each over a connection of its own."""
    replies = await asyncio.gather(*(send(port, "POST", CHAT, body=b"{}", source=source) for _ in range(number)))
    return {reply.status for reply in replies}


async def test_health_watches_take_no_request_from_the_models(gateway: RunningGateway, upstream: Upstream) -> None:
    address, most, extra = f"127.0.0.1:{gateway.port}", render.HEALTH_REQUESTS, 40
    async with under(lambda hold: health_watches(address, hold, most + extra, 4)) as seen:
        assert await gateway.gauge("cluster.health.upstream_rq_active") == most
        assert await gateway.gauge("cluster.text.upstream_rq_active") == 0
        assert await chats(gateway.port) == {200}
        async with grpc.aio.insecure_channel(address) as channel:  # Check counts apart from Watch
            reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
    assert await seen == {HELD: most, "UNAVAILABLE": extra}


async def test_a_health_watch_ends_in_time(tight: Tight) -> None:
    async with asyncio.timeout(60):
        seen = await health_watches(f"127.0.0.1:{tight.port}", Hold(), watches=4, connections=2)
    assert HELD not in seen
    assert seen.total() == 4


async def test_idle_connections_are_closed_and_probes_are_answered_meanwhile(tight: Tight) -> None:
    """Nobody else gets in at the limit, so the operator's listener must be apart."""
    async with under(lambda hold: idle_connections("127.0.0.1", tight.port, hold, CONNECTIONS + 20)) as seen:
        for path in (LIVE, READY, PATH):
            assert (await send(tight.settings.stats_port, "GET", path)).status == 200
        async with asyncio.timeout(60):
            assert HELD not in await asyncio.shield(seen)
    assert await chats(tight.port) == {200}


async def test_probes_let_no_further_client_in(tight: Tight) -> None:
    """Envoy's own global limit would: it counts down when an exempt connection is closed."""
    attack = partial(idle_connections, "127.0.0.1", tight.port, connections=CONNECTIONS + 20, first=ASKED)
    async with under(attack):
        for _ in range(20):
            assert (await send(tight.settings.stats_port, "GET", LIVE)).status == 200
        async with under(attack):
            assert await tight.gateway.gauge("http.edge.downstream_cx_active") <= CONNECTIONS


async def test_idle_keep_alive_connections_give_way_when_there_are_many(tight: Tight) -> None:
    async with under(lambda hold: idle_connections("127.0.0.1", tight.port, hold, CONNECTIONS - 4, ASKED)) as seen:
        assert await chats(tight.port, 2) == {200}
        async with asyncio.timeout(tight.settings.idle_seconds / 2):
            assert HELD not in await asyncio.shield(seen)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fair(socket_folder: Path) -> AsyncIterator[RunningGateway]:
    """A gateway that limits the connections of each address."""
    (folder := socket_folder / "fair").mkdir()
    await (text := Upstream()).start(text_socket := f"unix:{folder / 'text.sock'}")
    settings = replace(gateway_settings(), max_connections=CONNECTIONS, address_connections=ADDRESS_CONNECTIONS)
    local = f"unix:{folder / LOCAL}"
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(render, "LEAST_IDLE_SECONDS", 0.2)
            async with running_gateway(folder, (text_socket,), NOWHERE, settings, local=local) as gateway:
                yield gateway
    finally:
        await text.stop()


@pytest.mark.parametrize("again", [False, True], ids=["held", "reconnecting"])
async def test_one_address_takes_only_its_share_of_the_connections(fair: RunningGateway, again: bool) -> None:
    attack = partial(idle_connections, "127.0.0.1", fair.port, connections=CONNECTIONS + 20, again=again)
    async with under(attack) as seen:
        await settles(fair, ADDRESS_CONNECTIONS)
        for _ in range(3):
            assert await chats(fair.port, source="127.0.0.2") == {200}
        with pytest.raises(OSError):  # a reset may reach the client anywhere
            await send(fair.port, "POST", CHAT, body=b"{}")
    assert again or (await seen)[HELD] == ADDRESS_CONNECTIONS
    await settles(fair, 0)
    assert await chats(fair.port, ADDRESS_CONNECTIONS) == {200}  # all that it held was counted down


async def test_many_addresses_together_cannot_hold_what_they_do_not_use(fair: RunningGateway) -> None:
    async with opened_from(fair.port, [f"127.0.1.{number}" for number in range(CONNECTIONS)]) as readers:
        async with asyncio.timeout(gateway_settings().idle_seconds / 2):
            await asyncio.gather(*(reader.read() for reader in readers))
        assert await chats(fair.port) == {200}


async def test_the_socket_of_this_machine_has_no_limit(fair: RunningGateway) -> None:
    async with opened_locally(fair.log.parent / LOCAL, ADDRESS_CONNECTIONS + 1) as connections:
        for reader, writer in connections:
            writer.write(ASKED)
            assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)


async def settles(gateway: RunningGateway, connections: int) -> None:
    """Waits until the gateway has so many connections."""
    async with asyncio.timeout(60):
        while await gateway.gauge(CONNECTED) != connections:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)


@asynccontextmanager
async def opened_from(port: int, addresses: list[str]) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Opens a connection from each address, and sends nothing."""
    opening = (asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)) for address in addresses)
    pairs = await asyncio.gather(*opening)
    try:
        yield [reader for reader, _ in pairs]
    finally:
        for _, writer in pairs:
            writer.transport.abort()


@asynccontextmanager
async def opened_locally(
    socket: Path, number: int
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    pairs = [await asyncio.open_unix_connection(socket) for _ in range(number)]
    try:
        yield pairs
    finally:
        for _, writer in pairs:
            writer.close()


async def test_a_kept_connection_serves_further_requests(tight: Tight) -> None:
    """The limit for the first byte is only for the first: a client may be silent for longer afterwards."""
    async with opened(tight.port) as (reader, writer):
        for ask in range(2):
            if ask:
                await tight.outlives_a_body()  # which takes as long as the limit for the first byte
            writer.write(ASKED)
            assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)


async def test_unfinished_bodies_are_bounded_and_small_ones_pass(tight: Tight) -> None:
    size, bodies = MIB - 1024, CONNECTIONS - 4
    attack = partial(unfinished_bodies, "127.0.0.1", tight.port, bodies=bodies, size=size)
    async with under(attack) as seen:
        assert await tight.gateway.gauge("http.edge.downstream_rq_active") * size <= HELD_BYTES
        assert await chats(tight.port, 2) == {200}
        async with asyncio.timeout(60):
            assert set(await asyncio.shield(seen)) <= {"408", "503", CLOSED}  # a client that still sends may miss both
    # The largest are refused at once, before their time is over.
    lines = [json.loads(line) for line in await tight.gateway.logged('"status":503') if '"status":503' in line]
    assert {(line["path"], line["details"]) for line in lines} == {(CHAT, "max_duration_timeout")}


async def test_a_body_that_never_ends_is_answered_with_408(tight: Tight) -> None:
    reply = await tight.outlives_a_body()
    assert (reply.status, reply.error["code"]) == (408, "request_timeout")
    assert "ALLM_GATEWAY_BODY_SECONDS" in reply.error["message"]


async def test_an_answer_may_be_silent_for_longer_than_a_body(tight: Tight) -> None:
    async def chat(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        await tight.outlives_a_body()
        yield event("late")

    tight.text.chat = chat
    try:
        assert (await send(tight.port, "POST", CHAT, body=b"{}")).body == b'data: "late"\n\n'
    finally:
        tight.text.forget()


async def test_an_upload_of_audio_may_take_longer(tight: Tight) -> None:
    async with asyncio.timeout(60), uploading(tight.port, 4) as (reader, writer):
        writer.write(b"ab")
        await tight.audio.has_read(2)
        await tight.outlives_a_body()
        writer.write(b"cd")
        assert b" 200 " in await reader.readline()
