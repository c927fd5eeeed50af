"""The load generator against a scripted endpoint."""

from __future__ import annotations

from typing import Any

import pytest

from bench.level import Level, LevelResult
from bench.load import Target, level_of, request_body, run_level
from bench.prompts import PromptSet
from tests.bench.scripted import END, HEAD, Script, answer, chunk, event, serving, text, usage
from tests.case import case

TOKENS = 4


async def load(script: Script, **changes: Any) -> LevelResult:
    """Runs one client with two requests."""
    async with serving(script) as endpoint:
        target = Target(endpoint.url, "m", output_tokens=TOKENS, **changes)
        return await run_level(target, Level(PromptSet.UNIQUE, 1, requests=2, warmup=0))


async def test_counts_tokens_of_all_clients() -> None:
    async with serving(lambda _: [answer(TOKENS)]) as endpoint:
        target = Target(endpoint.url, "m", output_tokens=TOKENS)
        result = await run_level(target, Level(PromptSet.SHARED, 3, requests=7, warmup=2))
    assert result.errors == {}
    assert (result.requests, result.output_tokens, result.events) == (7, 28, 28)
    assert (result.prompt_tokens, result.cached_tokens) == (7, 3)
    assert result.tokens_per_s == pytest.approx(28 / result.wall_s)
    assert 0 < result.ttft_ms.p50 <= result.ttft_ms.p95 <= result.ttft_ms.max
    assert 0 <= result.gap_ms.p50 <= result.gap_ms.max
    assert len(endpoint.requests) == 9  # the warm-up's too


async def test_asks_all_servers_for_the_same_work() -> None:
    async with serving(lambda _: [answer(TOKENS)]) as endpoint:
        await run_level(Target(endpoint.url, "m", output_tokens=TOKENS), Level(PromptSet.UNIQUE, 2, 4, 1))
    for body in endpoint.requests:
        assert body["max_tokens"] == TOKENS
        assert body["temperature"] == 0
        assert body["ignore_eos"] is True
        assert body["stream_options"] == {"include_usage": True}
    beginnings = {body["messages"][0]["content"][:20] for body in endpoint.requests}
    assert len(beginnings) == len(endpoint.requests)


async def test_a_server_that_goes_on_past_its_end_token_in_its_own_way() -> None:
    async with serving(lambda _: [answer(TOKENS)]) as endpoint:
        target = Target(endpoint.url, "m", output_tokens=TOKENS, endless={"generation_config": "{}"})
        await run_level(target, Level(PromptSet.UNIQUE, 1, 1, 0))
    (body,) = endpoint.requests
    assert body["generation_config"] == "{}"
    assert "ignore_eos" not in body


async def test_a_server_that_does_not_say_done() -> None:
    result = await load(lambda _: [HEAD, text("a"), usage(TOKENS), END], says_done=False)
    assert result.errors == {}
    assert result.output_tokens == 2 * TOKENS


def test_shared_prompts_share_their_system_message_only() -> None:
    one, two = (request_body(Target("", "m"), PromptSet.SHARED, seed) for seed in "12")
    assert one != two
    start = one.index(b'"role":"user"')
    assert one[:start] == two[:start]
    assert one[start + 30 : start + 60] != two[start + 30 : start + 60]


async def test_pieces_cut_anywhere() -> None:
    whole = answer(TOKENS)
    for size in (1, 2, 3, 7, 64):
        result = await load(lambda _, size=size: [whole[at : at + size] for at in range(0, len(whole), size)])
        assert result.errors == {}
        assert result.events == 2 * TOKENS


async def test_comments_and_foreign_fields_are_skipped() -> None:
    start = HEAD + chunk(b": ping\n\nevent: x\r\nid: 1\r\n\r\n")
    result = await load(lambda _: [start + answer(TOKENS).removeprefix(HEAD)])
    assert result.errors == {}


async def test_every_failure_is_an_error() -> None:
    for pieces, reason in [
        ([HEAD, text("a"), event({"error": {"message": "out of paper"}}), END], "error in the stream: out of paper"),
        ([HEAD, text("a"), event({"error": "plain"}), usage(TOKENS), chunk(b"data: [DONE]\n\n"), END], "plain"),
        ([answer(TOKENS - 1)], "3 output tokens instead of 4"),
        ([answer(TOKENS + 1)], "5 output tokens instead of 4"),
        ([HEAD, text("a"), chunk(b"data: [DONE]\n\n"), END], "the stream held no usage"),
        ([HEAD, text("a"), usage(TOKENS), END], "ended without [DONE]"),
        ([HEAD, usage(TOKENS), chunk(b"data: [DONE]\n\n"), END], "no text in the stream"),
        ([HEAD, text("a"), b"1f\r\ndata: {"], "closed in the middle of an answer"),
        ([HEAD, chunk(b"data: {nonsense\n\n"), END], "an event that is no chunk"),
        ([HEAD, b"zz\r\n"], "not a chunk size"),
        ([b"SSH-2.0-server\r\n\r\n"], "not an HTTP/1.1 response"),
        ([b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi"], "not a stream but text/html"),
        (
            [b'HTTP/1.1 429 Slow\r\nContent-Length: 34\r\n\r\n{"error":{"message":"queue full"}}'],
            "HTTP 429: queue full",
        ),
        ([b"HTTP/1.1 502 Bad\r\n\r\nno upstream"], "HTTP 502: no upstream"),
    ]:
        with case(pieces=pieces, reason=reason):
            result = await load(lambda _, pieces=pieces: pieces)
            ((reported, count),) = result.errors.items()
            assert reason in reported
            assert count == 2
            assert (result.output_tokens, result.tokens_per_s) == (0, 0)


async def test_good_answers_count_despite_bad_ones() -> None:
    numbers = iter(range(2))
    result = await load(lambda _: [answer(TOKENS if next(numbers) else TOKENS - 1)])
    assert result.errors == {"3 output tokens instead of 4": 1}
    assert result.output_tokens == TOKENS


async def test_keep_alive_uses_one_connection_for_each_client() -> None:
    for keep_alive, connections in ((True, 1), (False, 5)):
        async with serving(lambda _: [answer(TOKENS)]) as endpoint:
            target = Target(endpoint.url, "m", output_tokens=TOKENS, keep_alive=keep_alive)
            result = await run_level(target, Level(PromptSet.UNIQUE, 1, requests=4, warmup=1))
        assert result.errors == {}
        assert endpoint.connections == connections


async def test_a_silent_server_times_out() -> None:
    async with serving(lambda _: [HEAD, text("a")]) as endpoint:
        # The server keeps the connection open and waits for another request, which does not come.
        target = Target(endpoint.url, "m", keep_alive=True, timeout_seconds=0.05)
        result = await run_level(target, Level(PromptSet.UNIQUE, 1, requests=1, warmup=0))
    assert result.errors == {"no complete answer within 0.05 s": 1}


async def test_no_listener() -> None:
    async with serving(lambda _: []) as endpoint:
        url = endpoint.url
    result = await run_level(Target(url, "m"), Level(PromptSet.UNIQUE, 1, requests=1, warmup=0))
    ((reported, _),) = result.errors.items()
    assert reported.startswith("no connection")


def test_levels_grow_with_the_clients() -> None:
    assert [level_of(PromptSet.UNIQUE, clients).requests for clients in (1, 8, 32, 5)] == [8, 32, 96, 15]
    assert [level_of(PromptSet.UNIQUE, clients, quick=True).requests for clients in (1, 8, 32)] == [3, 16, 32]
