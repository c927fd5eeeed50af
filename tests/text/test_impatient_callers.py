"""Callers who set a deadline and callers who stop reading, behind the gateway with the real model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from allm.text.v1 import chat_service_pb2_grpc

from tests.minilm import ENCODER
from tests.runtime_counters import Runtime, answer, asked
from tests.stack import Stack, running_stack
from tests.text.service import (
    CHAT,
    LONG,
    PATIENCE_SECONDS,
    RUNNING,
    STEPS,
    WAITING,
    chat,
    counter,
    ended,
    in_band_error,
    is_idle,
    long_chat,
    post,
    typed_chat,
    wait_until,
    warm,
)

PLACES = 4
DEADLINE_SECONDS = 10  # long enough for a first token on any machine
# Upper bound on the steps until the worker learns of the deadline, unread messages included. Whole answers take 8000.
FEW_STEPS = 500
HEADER = "x-request-timeout"


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with few sequence slots and a short limit for callers who do not read."""
    limits = {"ALLM_MAX_SEQUENCES": str(PLACES), "ALLM_SLOW_CLIENT_SECONDS": "1"}
    with running_stack(tmp_path_factory.mktemp("narrow"), **limits) as running:
        yield running


@contextmanager
def all_places_taken(stack: Stack) -> Iterator[None]:
    """Occupies all sequence slots for the duration of the block."""
    with asked(stack, CHAT, long_chat(n=PLACES)):
        wait_until(stack, lambda: counter(stack, RUNNING) == PLACES)
        yield


def test_a_deadline_ends_a_stream_in_band_and_a_whole_answer_by_its_status(stack: Stack) -> None:
    warm(stack)
    headers, before = {HEADER: str(DEADLINE_SECONDS)}, ended(stack)
    with (
        asked(stack, CHAT, long_chat(stream=True), headers=headers) as streamed,
        asked(stack, CHAT, long_chat(), headers=headers) as whole,
    ):
        error = in_band_error(streamed.getresponse())
        status, reply = answer(whole)
    assert (error["type"], error["code"]) == ("server_error", "timeout")
    assert error["message"] == f"the request took longer than the {DEADLINE_SECONDS} seconds of {HEADER}"
    assert (status, reply["error"]) == (504, error)
    wait_until(stack, lambda: ended(stack) >= before + 2)
    steps = counter(stack, STEPS)
    wait_until(stack, lambda: is_idle(stack))
    assert counter(stack, STEPS) - steps <= FEW_STEPS


def test_a_grpc_deadline_frees_the_sequence(stack: Stack) -> None:
    warm(stack)
    steps = counter(stack, STEPS)
    with grpc.insecure_channel(stack.grpc_address) as channel:
        stub = chat_service_pb2_grpc.ChatServiceStub(channel)
        request = typed_chat("Count.", max_tokens=LONG, ignore_eos=True)
        call: Any = stub.StreamChatCompletion(request, timeout=3)
        with pytest.raises(grpc.RpcError):
            for _ in call:
                pass
        assert call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(stack, lambda: is_idle(stack))
    assert counter(stack, STEPS) - steps < LONG / 2


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", "/v1/responses"])
def test_a_deadline_that_is_no_time_is_refused_by_name_everywhere(stack: Stack, path: str) -> None:
    with asked(stack, path, b"{}", headers={HEADER: "soon"}) as connection:
        status, reply = answer(connection)
    assert (status, reply["error"]["param"], reply["error"]["type"]) == (400, HEADER, "invalid_request_error")


def test_abandoned_inputs_are_not_embedded(stack: Stack) -> None:
    body = json.dumps({"model": ENCODER, "input": ["word " * 200] * 1000}).encode()
    with asked(stack, "/v1/embeddings", json.dumps({"model": ENCODER, "input": "a"}).encode()) as connection:
        assert answer(connection)[0] == 200
    with asked(stack, "/v1/embeddings", body, headers={HEADER: "0.3"}) as connection:
        status, reply = answer(connection)
    assert (status, reply["error"]["code"]) == (504, "timeout")
    encoder = Runtime(stack, "text", ENCODER)
    encoder.wait_until(lambda: encoder.idle)


@pytest.mark.slow
def test_request_waiting_beyond_its_deadline_is_never_started(narrow: Stack) -> None:
    warm(narrow)
    with all_places_taken(narrow):
        with asked(narrow, CHAT, chat(), headers={HEADER: "1"}) as connection:
            status, reply = answer(connection)
        assert (status, reply["error"]["code"]) == (504, "timeout")
        wait_until(narrow, lambda: counter(narrow, WAITING) == 0)
        assert counter(narrow, RUNNING) == PLACES
    wait_until(narrow, lambda: is_idle(narrow))


@pytest.mark.slow
@pytest.mark.timeout(6 * PATIENCE_SECONDS)
def test_a_client_who_stops_reading_is_disconnected_and_keeps_no_cells(narrow: Stack) -> None:
    """The service buffers the answer up to its limit and cancels it a second later. The call bypasses the gateway,
    which would buffer as much again.
    """
    warm(narrow)
    request = typed_chat("Count.", max_tokens=8000, ignore_eos=True)
    request.choices, request.top_logprobs = PLACES, 20
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536)]
    with grpc.insecure_channel(f"unix:{narrow.note['folder']}/text.sock", options=options) as channel:
        call: Any = chat_service_pb2_grpc.ChatServiceStub(channel).StreamChatCompletion(
            request, timeout=PATIENCE_SECONDS * 5
        )
        assert next(call).WhichOneof("event") == "started"
        log = narrow.home / "logs" / "text.log"
        wait_until(narrow, lambda: "ALLM_SLOW_CLIENT_SECONDS" in log.read_text(), 3 * PATIENCE_SECONDS)
        wait_until(narrow, lambda: is_idle(narrow))
        assert "Paris" in post(narrow, chat(temperature=0, max_tokens=16)).text
        call.cancel()
