"""Redis as the store: outages, its clock, memory limits and password."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.errors import Internal, StoreUnavailable
from services.settings.setting import SettingError
from services.text.responses import background, redis_store
from services.text.responses.redis_store import RedisResponseStore
from services.text.responses.response import Delta, Progress, Response, ResponseSettings
from services.text.responses.responses import Responses
from services.text.responses.store import DAY, STALE_SECONDS
from tests.redis_server import PASSWORD, RedisServer
from tests.text.responses.scripted_chat import ScriptedChat, ScriptedModels, request, said

ANN = "ann"

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A separate server for tests that stop it."""
    found = RedisServer(tmp_path)
    yield found
    found.kill()


@pytest.fixture
async def store(empty_redis: RedisServer) -> AsyncIterator[RedisResponseStore]:
    found = RedisResponseStore(empty_redis.url, 30)
    yield found
    await found.close()


@pytest.fixture
async def fragile(server: RedisServer) -> AsyncIterator[RedisResponseStore]:
    found = RedisResponseStore(server.url, 30)
    yield found
    await found.close()


@pytest.fixture
def chat() -> ScriptedChat:
    return ScriptedChat()


@pytest.fixture
async def responses(chat: ScriptedChat, server: RedisServer) -> AsyncIterator[Responses]:
    found = Responses(ScriptedModels(), chat, RedisResponseStore(server.url, 30))  # type: ignore[arg-type]
    yield found
    await found.close()


def response(response_id: str, created: float, status: Any = "completed", **asked: Any) -> Response:
    output = (said("out", "assistant", f"{response_id}_out"),) if status == "completed" else ()
    settings = ResponseSettings(**{"store": True, "background": status != "completed", **asked})
    return Response(id=response_id, model="m", created=created, settings=settings, status=status, output=output)


def now(server: RedisServer) -> float:
    connection = server.connect()
    seconds, micros = connection.time()
    connection.close()
    return float(seconds) + micros / 1e6


async def until(look: Any) -> Any:
    async with asyncio.timeout(30):
        while not (found := await look()):  # noqa: ASYNC110 (what is waited for is in Redis)
            await asyncio.sleep(0.02)
    return found


# --- contents


async def test_every_key_of_a_response_expires_by_itself(store: RedisResponseStore, empty_redis: RedisServer) -> None:
    created = now(empty_redis)
    running = response("resp_2", created, "in_progress", streamed=True)
    given = (said("in", "user", "msg_in"),)
    await store.add(ANN, response("resp_1", created), given)
    await store.add_background(ANN, running, given, "runner")
    await store.advance(running, [Delta(0, "text", "msg", "x")], 0)
    done = msgspec.structs.replace(running, status="completed", output=(said("out", "assistant", "msg_out"),))
    connection = empty_redis.connect()
    lasting = {name for name in connection.scan_iter() if connection.ttl(name) < 0}
    assert lasting == {b"allm:1:clients"}
    await store.advance(done, [Progress("completed", done)], 1)
    names = set(connection.keys()) - {b"allm:1:clients"}
    assert len(names) > 10
    assert {round(connection.ttl(name) / DAY) for name in names} == {30}
    await store.delete(ANN, "resp_1")
    await store.delete(ANN, "resp_2")
    assert connection.get("allm:1:size:3:ann") == b"0", "what is deleted is not counted"
    left = set(connection.keys()) - {b"allm:1:clients", b"allm:1:size:3:ann"}
    connection.close()
    assert left == set(), "nor is anything else of it there"


async def test_a_sweep_forgets_what_has_expired_by_itself(store: RedisResponseStore, empty_redis: RedisServer) -> None:
    created = now(empty_redis) - 30 * DAY
    await store.add(ANN, response("resp_1", created + 0.3), (said("in"),))
    await store.add("bob", response("resp_2", created + DAY), (said("in"),))
    connection = empty_redis.connect()

    async def gone() -> bool:
        return not connection.exists("allm:1:response:6:resp_1")

    await until(gone)
    await until(lambda: swept(store))
    assert connection.smembers("allm:1:clients") == {b"bob"}
    connection.close()


async def swept(store: RedisResponseStore) -> bool:
    await store.sweep()
    return True


async def test_heartbeats_follow_the_clock_of_redis(store: RedisResponseStore, empty_redis: RedisServer) -> None:
    """The clock of Redis decides, so wrong clocks of hosts do not make a running response fail."""
    late = RedisResponseStore(empty_redis.url, 30, lambda: now(empty_redis) + STALE_SECONDS + 1)
    await store.add_background(ANN, response("resp_1", now(empty_redis), "queued"), (said("in"),), "runner")
    assert (await store.get(ANN, "resp_1")).status == "queued"
    assert (await late.get(ANN, "resp_1")).status == "failed", "it is the clock that says so"
    await late.close()


# --- outages


async def test_an_absent_redis_is_reported_and_used_again_later(
    fragile: RedisResponseStore, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    created = now(server)
    await fragile.add(ANN, response("resp_1", created), (said("in"),))
    await fragile.add_background(ANN, response("resp_2", created, "queued"), (said("in"),), "runner")
    server.kill()
    with caplog.at_level(logging.DEBUG):
        for act in (
            fragile.check(ANN),
            fragile.get(ANN, "resp_1"),
            fragile.beat("runner", ["resp_2"]),
            fragile.sweep(),
        ):
            with pytest.raises(StoreUnavailable, match=r"ALLM_REDIS_URL.*cannot be reached") as caught:
                await act
            assert (caught.value.http_status, caught.value.code) == (503, "INTERNAL")
            assert "retry-after" in caught.value.headers()
    assert caplog.text.count("cannot be used") == 1, "the log says it once"
    assert PASSWORD not in caplog.text
    server.start()
    assert (await fragile.get(ANN, "resp_1")).output
    assert await fragile.beat("runner", ["resp_2"]) == {"resp_2"}


async def test_a_restarted_redis_gives_replicas_time_to_report(
    fragile: RedisResponseStore, server: RedisServer
) -> None:
    await fragile.add_background(ANN, response("resp_1", now(server), "queued"), (said("in"),), "runner")
    connection = server.connect()
    connection.hset("allm:1:response:6:resp_1", "heartbeat", now(server) - STALE_SECONDS - 1)
    connection.close()
    server.kill()
    server.start()
    assert (await fragile.get(ANN, "resp_1")).status == "queued"


async def test_a_hung_redis_times_out(
    fragile: RedisResponseStore, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fragile.check(ANN)
    monkeypatch.setattr(redis_store, "CALL_SECONDS", 0.3)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match="has not answered"):
            await fragile.get(ANN, "resp_1")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    monkeypatch.undo()
    await fragile.check(ANN)


async def test_a_full_redis_is_reported(fragile: RedisResponseStore, server: RedisServer) -> None:
    connection = server.connect()
    connection.config_set("maxmemory", "1mb")
    connection.close()
    with pytest.raises(StoreUnavailable, match=r"OutOfMemory|OOM"):
        await fragile.add(ANN, response("resp_1", now(server)), (said("x" * 2_000_000),))
        await fragile.add(ANN, response("resp_2", now(server)), (said("x" * 2_000_000),))


async def test_a_wrong_password_is_named_and_not_shown(empty_redis: RedisServer) -> None:
    store = RedisResponseStore(empty_redis.url.replace("s3cr", "0ther"), 30)
    with pytest.raises(StoreUnavailable, match="the user or the password") as caught:
        await store.check(ANN)
    await store.close()
    assert "0ther" not in str(caught.value)


def test_an_option_that_is_unknown_stops_the_start() -> None:
    with pytest.raises(SettingError) as caught:
        RedisResponseStore("redis://:s3cret@localhost/0?socket_timeout=soon", 30)
    assert "s3cret" not in str(caught.value)


# --- the core over it


async def test_requests_without_storage_are_still_answered(
    responses: Responses, chat: ScriptedChat, server: RedisServer
) -> None:
    async def whole(**asked: Any) -> Response:
        async with responses.run(request(**asked), ANN) as run:
            return await run.whole()

    kept = await whole()
    server.kill()
    before = len(chat.asked)
    for asked in ({}, {"store": False, "previous_response_id": kept.id}):
        with pytest.raises(StoreUnavailable):
            await whole(**asked)
    with pytest.raises(StoreUnavailable):
        await responses.start(request(background=True), ANN)
    assert len(chat.asked) == before, "the model is not asked for what cannot be kept"
    assert (await whole(store=False)).status == "completed"
    server.start()
    assert (await whole(previous_response_id=kept.id)).status == "completed"


async def test_a_redis_that_disappears_causes_no_second_generation(
    responses: Responses, chat: ScriptedChat, server: RedisServer
) -> None:
    """With UNAVAILABLE the gateway would retry on another replica."""
    chat.gate = asyncio.Event()
    async with responses.run(request(), ANN) as run:
        server.kill()
        chat.gate.set()
        with pytest.raises(Internal) as caught:
            await run.whole()
    assert not isinstance(caught.value, StoreUnavailable)
    assert "ALLM_REDIS_URL" in caught.value.message


@pytest.mark.parametrize("streamed", [False, True])
async def test_background_response_waits_for_redis(
    responses: Responses, chat: ScriptedChat, server: RedisServer, streamed: bool
) -> None:
    chat.gate = asyncio.Event()
    queued = await responses.start(request(background=True, streamed=streamed), ANN)

    async def begun() -> bool:
        return (await responses.get(queued.id, ANN)).status == "in_progress"

    await until(begun)
    server.kill()
    chat.gate.set()
    (job,) = responses._background._jobs.values()  # type: ignore[union-attr]

    async def said_all() -> bool:
        return job.record.response.status == "completed"

    await until(said_all)
    assert not job.task.done(), "it waits until its end can be kept"
    server.start()

    async def final() -> Response | None:
        found = await responses.get(queued.id, ANN)
        return None if found.running else found

    found = await until(final)
    assert found.status == "completed"
    if streamed:
        followed = [one async for batch in responses.follow(queued.id, ANN) for one in batch]
        assert [number for number, _ in followed] == list(range(len(followed)))
        assert "".join(event.text for _, event in followed if isinstance(event, Delta)) == "Hello"


async def test_a_background_response_waits_for_redis_with_a_limit(
    responses: Responses, chat: ScriptedChat, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "AWAY_SECONDS", 0.1)
    chat.gate = asyncio.Event()
    await responses.start(request(background=True), ANN)

    async def running() -> bool:
        return bool(chat.running)

    await until(running)
    server.kill()
    chat.gate.set()

    async def nothing_left() -> bool:
        return not responses._background._jobs  # type: ignore[union-attr]

    await until(nothing_left)
