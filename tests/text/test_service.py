"""The text service behind the gateway, with the real model: cleanup, refusals, repeatability and logs."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any

import grpc
import pytest
from allm.text.v1 import chat_service_pb2, response_service_pb2
from allm.text.v1.chat_service_pb2_grpc import ChatServiceStub
from allm.text.v1.response_service_pb2_grpc import ResponseServiceStub

from tests.case import case
from tests.stack import ALIAS, MODEL, Stack
from tests.text.response_replica import asked
from tests.text.service import (
    CHAT,
    PATIENCE_SECONDS,
    QUESTION,
    RUNNING,
    STEPS,
    asking,
    chat,
    counter,
    ended,
    is_idle,
    listed,
    long_chat,
    post,
    streaming,
    suspended,
    typed_chat,
    typed_error,
    typed_stream,
    wait_until,
    warm,
    workers,
)

# Upper bound on further steps: those whose messages the socket held unread when the worker was suspended, and some
# until the worker learns of the hang-up. The whole answer would take 8000.
FEW_STEPS = 500
CONTEXT = 8192
SECRET = "zanzibar"


@contextmanager
def rest_stream(stack: Stack) -> Iterator[None]:
    with streaming(stack, long_chat(stream=True)):
        yield


@contextmanager
def whole_rest_answer(stack: Stack) -> Iterator[None]:
    with asking(stack, long_chat()):
        yield


@contextmanager
def grpc_stream(stack: Stack) -> Iterator[None]:
    with typed_stream(stack, typed_chat("Count.", max_tokens=8000, ignore_eos=True)) as call:
        assert next(call).WhichOneof("event") == "started"
        yield


@pytest.mark.parametrize("caller", [rest_stream, whole_rest_answer, grpc_stream])
def test_a_caller_who_hangs_up_frees_the_sequence(
    stack: Stack, caller: Callable[[Stack], AbstractContextManager[None]]
) -> None:
    """The worker is suspended until the service knows, so that the speed of the machine does not matter."""
    warm(stack)
    with ExitStack() as standing:
        with caller(stack):
            wait_until(stack, lambda: counter(stack, RUNNING) == 1)
            standing.enter_context(suspended(workers(stack)))
            before = ended(stack)
        wait_until(stack, lambda: ended(stack) > before)
        assert not is_idle(stack)
        steps = counter(stack, STEPS)
    wait_until(stack, lambda: is_idle(stack))
    assert counter(stack, STEPS) - steps <= FEW_STEPS


@pytest.mark.slow
def test_client_that_does_not_read_delays_no_other_and_keeps_no_cells(stack: Stack) -> None:
    warm(stack)
    body = long_chat(400, stream=True)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", stack.port))
        client.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode())
        client.sendall(body)
        wait_until(stack, lambda: counter(stack, RUNNING) == 1)
        assert "Paris" in post(stack, chat(temperature=0, max_tokens=16)).text
        assert counter(stack, RUNNING) == 1
        wait_until(stack, lambda: is_idle(stack), 2 * PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("content", "wanted", "param"),
    [("word " * 9000, 1, "messages"), ("Hello.", CONTEXT, "max_tokens")],
)
def test_prompt_over_the_context_is_refused_with_both_numbers(
    stack: Stack, content: str, wanted: int, param: str
) -> None:
    reply = post(stack, chat(content, max_tokens=wanted))
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert (reply.error["code"], reply.error["param"]) == ("context_length_exceeded", param)
    numbers = [int(number) for number in re.findall(r"\d+", reply.error["message"])]
    assert CONTEXT in numbers
    assert max(numbers) > CONTEXT
    reported = typed_error(stack, typed_chat(content, max_tokens=wanted))
    assert (reported.code, reported.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert reported.metadata["param"] == param
    assert reported.message == reply.error["message"]


def test_a_megabyte_without_a_space_is_refused_and_the_worker_lives_on(stack: Stack) -> None:
    warm(stack)
    before = workers(stack)
    reply = post(stack, chat("a" * 1024 * 1024))
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert before
    assert workers(stack) == before


def test_a_seed_repeats_an_answer(stack: Stack) -> None:
    wait_until(stack, lambda: is_idle(stack))
    first, again, other = (post(stack, chat("Tell me a story.", seed=seed, max_tokens=24)).text for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_an_alias_is_listed_with_its_model(stack: Stack) -> None:
    assert {MODEL, ALIAS} <= set(listed(stack))


def log_lines(stack: Stack, name: str, request: str) -> list[dict[str, Any]]:
    """Returns the lines of a log that concern a request."""
    lines = (stack.home / "logs" / f"{name}.log").read_text().splitlines()
    return [json.loads(line) for line in lines if request in line]


@pytest.mark.parametrize(
    ("body", "status", "reported"),
    [(chat(max_tokens=2), 200, "request done"), (chat(temperature=9), 400, "request failed")],
)
def test_both_logs_have_the_request_id_of_the_response(stack: Stack, body: bytes, status: int, reported: str) -> None:
    reply = post(stack, body)
    request = reply.headers["x-request-id"]
    assert reply.status == status
    wait_until(stack, lambda: log_lines(stack, "text", request) and log_lines(stack, "gateway", request))
    (line,) = log_lines(stack, "text", request)
    assert (line["request_id"], line["msg"], line["level"]) == (request, reported, "info")


def rest(stack: Stack, path: str, **body: Any) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", stack.port, timeout=PATIENCE_SECONDS)) as connection:
        connection.request("POST", path, json.dumps({"model": MODEL, **body}), {"content-type": "application/json"})
        response = connection.getresponse()
        assert (response.status, bool(response.read())) == (200, True)


def test_the_log_has_the_usage_of_every_endpoint(stack: Stack) -> None:
    typed = typed_chat(max_tokens=2)
    whole = chat_service_pb2.CreateChatCompletionRequest(
        model=typed.model, messages=typed.messages, sampling=typed.sampling
    )
    with grpc.insecure_channel(stack.grpc_address) as channel:
        chats, responses = ChatServiceStub(channel), ResponseServiceStub(channel)
        for name, ask in {
            "TextFacade.CreateCompletion": lambda: rest(stack, "/v1/completions", prompt="Once", max_tokens=2),
            "ResponsesFacade.CreateResponse": lambda: rest(
                stack, "/v1/responses", input="Hi", max_output_tokens=2, store=False
            ),
            "ChatServicer.CreateChatCompletion": lambda: chats.CreateChatCompletion(whole),
            "ChatServicer.StreamChatCompletion": lambda: list(chats.StreamChatCompletion(typed)),
            "ResponseServicer.CreateResponse": lambda: responses.CreateResponse(
                response_service_pb2.CreateResponseRequest(**asked("Hi", {"max_tokens": 2}))
            ),
            "ResponseServicer.StreamResponse": lambda: list(
                responses.StreamResponse(response_service_pb2.StreamResponseRequest(**asked("Hi", {"max_tokens": 2})))
            ),
        }.items():
            with case(rpc=name):
                before = len(log_lines(stack, "text", name))
                ask()
                wait_until(stack, lambda name=name, before=before: len(log_lines(stack, "text", name)) > before)
                assert log_lines(stack, "text", name)[-1]["usage"]["completion"] == 2


def with_messages(messages: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": messages}).encode()


WITH_SECRET = {
    "answered": chat(f"{SECRET}. {QUESTION}", max_tokens=16),
    "too long": chat(SECRET * 9000),
    "no JSON": f'{{"messages": "{SECRET}'.encode(),
    "no list": with_messages(SECRET),
    "no such part": with_messages([{"role": "user", "content": [{"type": SECRET}]}]),
    "no such role": with_messages([{"role": SECRET, "content": SECRET}]),
    "no number": chat(SECRET, temperature=SECRET),
    "too many": chat(SECRET, stop=[SECRET] * 1000),
}


@pytest.mark.parametrize("kind", WITH_SECRET)
def test_no_log_has_the_text_of_a_prompt_or_an_answer(stack: Stack, kind: str) -> None:
    reply = post(stack, WITH_SECRET[kind])
    assert reply.status == (200 if kind == "answered" else 400)
    hidden = [SECRET, "capital of France", *([reply.text] if reply.status == 200 else [])]
    request = reply.headers["x-request-id"]
    wait_until(stack, lambda: log_lines(stack, "text", request) and log_lines(stack, "gateway", request))
    logs = list((stack.home / "logs").iterdir())
    assert len(logs) >= 2
    for log in logs:
        text = log.read_text()
        assert [words for words in hidden if words in text] == [], log


def test_no_log_has_the_text_of_an_abandoned_or_typed_request(stack: Stack) -> None:
    with asking(stack, chat(SECRET, max_tokens=8000, ignore_eos=True)):
        wait_until(stack, lambda: counter(stack, RUNNING) == 1)
    typed = typed_error(stack, typed_chat(SECRET, temperature=9))
    assert typed.code == grpc.StatusCode.INVALID_ARGUMENT
    wait_until(stack, lambda: is_idle(stack) and log_lines(stack, "text", typed.metadata["request_id"]))
    for log in (stack.home / "logs").iterdir():
        assert SECRET not in log.read_text(), log
