"""The stream benchmark: a service with a fixed pace, callers that detect missing parts, and the table of both."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench.stream_caller import GrpcCallers, Incomplete, RestCallers, Token, read_all
from bench.streams import DIRECT, GATEWAY, REST, TYPED, Load, Reading, paced_text, report
from tests.bench.scripted import END, HEAD, chunk, serving

STREAMS, TOKENS = 4, 5
SECONDS = 60.0


async def test_every_token_of_a_paced_service_is_read_and_none_before_it_was_made(tmp_path: Path) -> None:
    before = time.perf_counter()
    with paced_text(100.0, tmp_path / "log") as (address, _):
        async with GrpcCallers(address, STREAMS, TOKENS) as callers:
            for caller in (callers.typed, callers.facade):
                tokens = await caller(0)
                assert len(tokens) == TOKENS
                assert all(token.late > 0 and token.made > before for token in tokens)
                found = await read_all(caller, STREAMS, SECONDS, ramp_seconds=0.0)
                assert (found.tokens, len(found.late_s), found.failed) == (STREAMS * TOKENS, STREAMS * TOKENS, [])


@pytest.mark.parametrize("missing", ["token", "end", "nothing"])
async def test_a_stream_of_events_that_lacks_something_is_not_complete(missing: str) -> None:
    def script(_: dict) -> list[bytes]:
        count = TOKENS - (missing == "token")
        moments = [chunk(b'data: {"content":"%d"}\n\n' % time.perf_counter_ns()) for _ in range(count)]
        end = [] if missing == "end" else [chunk(b"data: [DONE]\n\n")]
        return [HEAD, *moments, *end, END]

    async with serving(script) as endpoint:
        callers = RestCallers(endpoint.url, TOKENS)
        if missing == "nothing":
            assert len(await callers.read(0)) == TOKENS
        else:
            with pytest.raises(Incomplete, match="4 of 5" if missing == "token" else "without an end"):
                await callers.read(0)


async def test_only_tokens_after_the_last_start_count() -> None:
    async def caller(number: int) -> list[Token]:
        return [Token(made, 0.5) for made in (time.perf_counter(), time.perf_counter() + SECONDS)]

    found = await read_all(caller, 2, SECONDS, ramp_seconds=0.01)
    assert (found.tokens, found.late_s) == (4, [0.5, 0.5])


def reading(kind: str, way: str, late: tuple[float, float], failed: list[str]) -> Reading:
    return Reading(kind, way, 1.0, late, 10, failed, 75.0, 33.0 if way == GATEWAY else 0.0, 60.0, 5.0)


def test_the_table_shows_the_gateways_overhead_and_failures() -> None:
    readings = [
        reading(TYPED, DIRECT, (0.001, 0.010), []),
        reading(TYPED, GATEWAY, (0.003, 0.015), []),
        reading(REST, DIRECT, (0.001, 0.010), []),
        reading(REST, GATEWAY, (0.002, 0.012), ["Incomplete: 3 of 5 tokens"]),
    ]
    text = report(readings, Load(2, 10.0, 5, 1), "2 cores")
    assert "NOT all streams were complete" in text
    assert "1 of 2" in text and "Incomplete: 3 of 5 tokens" in text
    assert f"| {TYPED} | 2.00 | 5.00 | 33 |" in text
    readings[-1] = reading(REST, GATEWAY, (0.002, 0.012), [])
    assert "All streams were complete." in report(readings, Load(2, 10.0, 5, 1), "2 cores")
