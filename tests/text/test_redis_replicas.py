"""Two replicas that keep their responses in Redis: created on one, read, continued and cancelled on the other."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from allm.text.v1 import response_pb2

from tests.redis_server import PASSWORD, RedisServer
from tests.stack import MODEL, Stack, running_stack
from tests.text.response_replica import RUNNING, Replica, long, reason_of, replica, text_of, wait_until

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Shared:
    """A stack and its Redis."""

    stack: Stack
    server: RedisServer


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    home = tmp_path_factory.mktemp("redis-replicas")
    try:
        with running_stack(home, ALLM_TEXT_REPLICAS="2", ALLM_THREADS="1", ALLM_REDIS_URL=server.url) as stack:
            yield Shared(stack, server)
    finally:
        server.kill()


@pytest.fixture
def first(shared: Shared) -> Iterator[Replica]:
    yield from replica(shared.stack, 1)


@pytest.fixture
def second(shared: Shared) -> Iterator[Replica]:
    yield from replica(shared.stack, 2)


def test_another_replica_reads_and_continues_a_response(shared: Shared, first: Replica, second: Replica) -> None:
    made = first.create("What is the capital of France?", metadata={"a": "b"})
    assert second.get(made.id) == made
    there = second.create("And of Spain?", previous_response_id=made.id)
    assert text_of(there)
    assert there.usage.prompt_tokens > made.usage.prompt_tokens, "what was said before is in it"
    with pytest.raises(grpc.RpcError) as caught:
        second.as_client("bob").get(made.id)
    assert reason_of(caught.value)[0] == grpc.StatusCode.NOT_FOUND
    assert not (shared.stack.home / "responses.db").exists()


def test_another_replica_cancels_a_response(first: Replica, second: Replica) -> None:
    queued = long(first)
    wait_until(lambda: second.get(queued.id).status == response_pb2.RESPONSE_STATUS_IN_PROGRESS)
    assert second.cancel(queued.id).status == response_pb2.RESPONSE_STATUS_CANCELLED
    assert first.get(queued.id).status == response_pb2.RESPONSE_STATUS_CANCELLED


def post(stack: Stack, **body: Any) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"{stack.base_url}/responses",
        data=json.dumps({"model": MODEL, "input": "Hi", "max_output_tokens": 2, **body}).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_while_redis_is_away_only_what_needs_it_is_refused(shared: Shared, first: Replica, second: Replica) -> None:
    made = first.create("Hi", {"max_tokens": 2})
    running = first.create("Count.", {"max_tokens": 60, "ignore_eos": True}, background=True)
    wait_until(lambda: first.get(running.id).status != response_pb2.RESPONSE_STATUS_QUEUED)  # a fast one may have ended
    shared.server.kill()
    try:
        status, answer = post(shared.stack)
        assert (status, answer["error"]["code"]) == (503, "store_unavailable")
        assert "ALLM_REDIS_URL" in answer["error"]["message"]
        status, answer = post(shared.stack, store=False)
        assert (status, answer["store"]) == (200, False)
        with pytest.raises(grpc.RpcError) as caught:
            second.get(made.id)
        assert reason_of(caught.value)[:2] == (grpc.StatusCode.UNAVAILABLE, "INTERNAL")
    finally:
        shared.server.start()
    assert second.get(made.id) == made
    ended = wait_until(lambda: (found := second.get(running.id)).status not in RUNNING and found)
    assert ended.status == response_pb2.RESPONSE_STATUS_INCOMPLETE, "its end was kept, though Redis was away meanwhile"
    assert post(shared.stack)[0] == 200
    logs = "".join(path.read_text(errors="replace") for path in (shared.stack.home / "logs").glob("*.log"))
    assert "the store of responses cannot be used" in logs
    assert PASSWORD not in logs
    assert "s3cr%2Fet" not in logs
