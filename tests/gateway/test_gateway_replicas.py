"""Several replicas of the text service: clients never notice a replica that is dead or cannot serve a request."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.openai.v1 import text_service_pb2_grpc
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc
from google.api.httpbody_pb2 import HttpBody

from tests.gateway.envoy_process import NOWHERE, RunningGateway, gateway_settings, running_gateway
from tests.gateway.replica import replica_process
from tests.gateway.upstream import Script, Upstream, error_details, event, two_events
from tests.gateway.wire import Reply, send

pytestmark = pytest.mark.asyncio(loop_scope="session")
CHAT = "/v1/chat/completions"
MIB = 1024 * 1024
CONCURRENT = 256
NOT_READY = {"message": "The model is being fetched.", "type": "server_error", "param": None, "code": "model_not_ready"}
numbers = itertools.count()


async def not_ready(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
    """Refuses as a replica that has not fetched the model yet."""
    details = error_details(NOT_READY["message"], NOT_READY["type"], NOT_READY["code"])
    trailers = (details, ("retry-after", "7"), ("x-http-status", "503"))
    await context.abort(grpc.StatusCode.UNAVAILABLE, NOT_READY["message"], trailers)
    yield event("never")


@pytest.fixture
def folder(socket_folder: Path) -> Iterator[Path]:
    """Creates a separate folder for sockets."""
    path = socket_folder / f"replicas-{next(numbers)}"
    path.mkdir()
    yield path


@dataclass
class Replicas:
    """A gateway, and the scripted replicas behind it."""

    gateway: RunningGateway
    upstreams: list[Upstream]

    def play(self, *scripts: Script) -> None:
        for upstream, script in zip(self.upstreams, scripts, strict=True):
            upstream.chat = script

    def asked(self) -> list[int]:
        """Returns the number of chat requests that reached each replica."""
        return [len(upstream.bodies) for upstream in self.upstreams]

    async def chat(self, body: bytes = b"{}") -> Reply:
        return await send(self.gateway.port, "POST", CHAT, body=body)

    async def attempts(self, reply: Reply) -> int:
        """Returns the number of attempts that the gateway logged for a request."""
        lines = map(json.loads, await self.gateway.logged(reply.headers["x-request-id"]))
        (found,) = [line["attempts"] for line in lines if line.get("request_id") == reply.headers["x-request-id"]]
        return int(found)


@asynccontextmanager
async def replicas(folder: Path, count: int, max_body_bytes: int = MIB) -> AsyncIterator[Replicas]:
    async with AsyncExitStack() as stack:
        upstreams = [Upstream() for _ in range(count)]
        addresses = tuple(f"unix:{folder / f'text-{number}.sock'}" for number in range(count))
        for upstream, address in zip(upstreams, addresses, strict=True):
            await upstream.start(address)
            stack.push_async_callback(upstream.stop)
        settings = gateway_settings(max_body_bytes=max_body_bytes)
        gateway = await stack.enter_async_context(running_gateway(folder, addresses, NOWHERE, settings))
        yield Replicas(gateway, upstreams)


@dataclass
class FirstRefuses:
    """Refuses the first attempt of each request; second attempts wait until `last` of them have arrived."""

    last: int = 1
    seen: set[bytes] = field(default_factory=set)
    again: int = 0
    all_again: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        if request.data not in self.seen:
            self.seen.add(request.data)
            async for message in not_ready(request, context):
                yield message
        self.again += 1
        if self.again >= self.last:
            self.all_again.set()
        await self.all_again.wait()
        yield event("done")


@pytest.mark.parametrize("ready", [0, 1])
async def test_a_model_that_is_ready_on_one_of_two_never_fails(folder: Path, ready: int) -> None:
    async with replicas(folder, 2) as two:
        scripts = [not_ready, not_ready]
        scripts[ready] = two_events
        two.play(*scripts)
        replies = [await two.chat() for _ in range(40)]
        replies += await asyncio.gather(*(two.chat() for _ in range(40)))
        assert {reply.status for reply in replies} == {200}
        assert two.asked()[ready] == len(replies)
        assert two.asked()[1 - ready] > 10, "the balancer knew which one to ask, so nothing was tried again"


async def test_it_is_found_among_many(folder: Path) -> None:
    async with replicas(folder, 8) as eight:
        eight.play(two_events, *[not_ready] * 7)
        for _ in range(20):
            assert (await eight.chat()).status == 200
        assert eight.asked()[0] == 20


async def test_every_replica_is_tried_once_if_none_can(folder: Path) -> None:
    async with replicas(folder, 3) as three:
        three.play(not_ready, not_ready, not_ready)
        reply = await three.chat()
        assert three.asked() == [1, 1, 1]
        assert await three.attempts(reply) == 3
        assert (reply.status, reply.headers["retry-after"], reply.error) == (503, "7", NOT_READY)


async def test_the_only_replica_is_not_asked_again(gateway: RunningGateway, upstream: Upstream) -> None:
    upstream.chat = not_ready
    reply = await send(gateway.port, "POST", CHAT, body=b"{}")
    assert len(upstream.bodies) == 1
    assert await Replicas(gateway, [upstream]).attempts(reply) == 1
    assert (reply.status, reply.headers["retry-after"], reply.error) == (503, "7", NOT_READY)


async def test_errors_that_all_replicas_would_give_are_not_tried_again(folder: Path) -> None:
    async with replicas(folder, 2) as two:
        for code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT):

            async def chat(request: HttpBody, context: Any, code: grpc.StatusCode = code) -> AsyncIterator[HttpBody]:
                await context.abort(code, "no")
                yield event("never")

            two.play(chat, chat)
            before = sum(two.asked())
            assert (await two.chat()).status != 200
            assert sum(two.asked()) == before + 1


async def test_nothing_is_tried_again_once_it_has_begun(folder: Path) -> None:
    async def chat(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        yield event("first")
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    async with replicas(folder, 2) as two:
        two.play(chat, chat)
        assert (await two.chat()).body == b'data: "first"\n\n'
        assert sum(two.asked()) == 1


@pytest.mark.parametrize("size", [MIB, 8 * MIB])
async def test_bodies_up_to_the_limit_reach_the_second_replica_whole(folder: Path, size: int) -> None:
    async with replicas(folder, 2, max_body_bytes=size) as two:
        refuse = FirstRefuses()
        two.play(refuse, refuse)
        body = bytes(at * 31 % 251 for at in range(1000)) * (size // 1000)
        body += b"x" * (size - len(body))
        assert (await two.chat(body)).status == 200
        assert [upstream.bodies for upstream in two.upstreams] == [[body], [body]]


async def test_grpc_bodies_up_to_the_limit_reach_the_second_replica_whole(folder: Path) -> None:
    async with replicas(folder, 2) as two:
        refuse = FirstRefuses()
        two.play(refuse, refuse)
        body = b"x" * (MIB - 100)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{two.gateway.port}") as channel:
            stub = text_service_pb2_grpc.TextServiceStub(channel)
            answers = [message.data async for message in stub.CreateChatCompletion(HttpBody(data=body))]
        assert answers == [b'data: "done"\n\n']
        assert [upstream.bodies for upstream in two.upstreams] == [[body], [body]]


async def test_many_requests_may_be_tried_again_at_the_same_time(folder: Path) -> None:
    """No request is answered before all are in their second attempt."""
    async with replicas(folder, 2) as two:
        refuse = FirstRefuses(last=CONCURRENT)
        two.play(refuse, refuse)
        async with asyncio.timeout(60), grpc.aio.insecure_channel(f"127.0.0.1:{two.gateway.port}") as channel:
            stub = text_service_pb2_grpc.TextServiceStub(channel)

            async def ask(number: int) -> bytes:
                return b"".join([m.data async for m in stub.CreateChatCompletion(HttpBody(data=b"%d" % number))])

            answers = await asyncio.gather(*(ask(number) for number in range(CONCURRENT)))
        assert set(answers) == {b'data: "done"\n\n'}
        assert sum(two.asked()) == 2 * CONCURRENT


@dataclass
class Load:
    """Clients that send requests without pause, and their answers; a request counts for the round in which it began."""

    gateway: RunningGateway
    clients: int
    round: int = 0
    ended: list[tuple[int, str]] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        async with asyncio.timeout(90), asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._client()) for _ in range(self.clients)]
            yield self
            for task in tasks:
                task.cancel()

    async def _client(self) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.gateway.port}") as channel:
            stub = text_service_pb2_grpc.TextServiceStub(channel)
            while True:
                began = self.round
                try:
                    answer = b"".join([m.data async for m in stub.CreateChatCompletion(HttpBody(data=b"{}"))])
                    self.ended.append((began, json.loads(answer.removeprefix(b"data: "))))
                except grpc.aio.AioRpcError as error:
                    self.ended.append((began, f"{error.code()}: {error.details()}"))

    def answers(self) -> Counter[str]:
        """Counts the answers of this round by replica name or error."""
        return Counter(reported for began, reported in self.ended if began == self.round)

    async def heard(self, *names: str, least: int) -> set[str]:
        """Waits for `least` answers in this round, including each of `names`; returns the distinct answers."""
        while not (self.answers().total() >= least and set(names) <= set(self.answers())):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return set(self.answers())


# With many clients, their failed running requests are enough to eject the replica immediately; with two, later requests
# still try it in vain.
@pytest.mark.parametrize("clients", [2, 32])
@pytest.mark.parametrize("socket_too", [False, True], ids=["refused", "gone"])
async def test_a_replica_that_is_killed_is_not_missed(folder: Path, socket_too: bool, clients: int) -> None:
    """Every request that begins after its death succeeds; after its restart it serves requests again."""
    one, two = folder / "text-1.sock", folder / "text-2.sock"
    async with (
        replica_process(one, "one") as victim,
        replica_process(two, "two"),
        running_gateway(folder, (f"unix:{one}", f"unix:{two}"), NOWHERE, gateway_settings()) as gateway,
        Load(gateway, clients).running() as load,
    ):
        await load.heard("one", "two", least=50)
        victim.kill()
        await victim.wait()
        if socket_too:
            one.unlink(missing_ok=True)
        load.round += 1
        assert await load.heard(least=200) == {"two"}
        assert (await send(gateway.port, "GET", "/healthz")).status == 200
        if clients == 2:
            await gateway.logged('"attempts":2')
        async with replica_process(one, "one"):
            load.round += 1
            assert await load.heard("one", "two", least=50) == {"one", "two"}


async def test_a_typed_stream_finds_the_living_replica_too(folder: Path) -> None:
    async with replicas(folder, 2) as two:
        await two.upstreams[0].stop()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{two.gateway.port}") as channel:
            stub = chat_service_pb2_grpc.ChatServiceStub(channel)
            for _ in range(10):
                request = chat_service_pb2.StreamChatCompletionRequest(model="m")
                events = [event.WhichOneof("event") async for event in stub.StreamChatCompletion(request)]
                assert events[-1] == "finished"
        assert len(two.upstreams[1].metadata) == 10
