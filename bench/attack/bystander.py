"""A caller with a key of its own, who uses the stack while it is under attack."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from bench.attack.target import CHAT, EMBEDDINGS, Target

QUESTION = {"model": CHAT, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
STREAM = {**QUESTION, "max_tokens": 16, "temperature": 0, "stream": True}
SHAPED = {
    **QUESTION,
    "max_tokens": 16,
    "temperature": 0,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "city", "schema": {"type": "object", "properties": {"city": {"maxLength": 8}}}},
    },
}
INPUT = {"model": EMBEDDINGS, "input": "The capital of France is Paris."}


@dataclass(slots=True)
class Bystander:
    """The calls of a bystander: how many, the longest wait, and what failed."""

    calls: int = 0
    waits: dict[str, float] = field(default_factory=dict)  # the longest of each kind, in seconds
    failed: list[str] = field(default_factory=list)

    @property
    def longest(self) -> float:
        """The longest wait of all, in seconds."""
        return max(self.waits.values(), default=0.0)


@asynccontextmanager
async def bystander(target: Target) -> AsyncIterator[Bystander]:
    """Makes calls of every kind, each kind in a loop of its own, while the block runs, and lets the last ones end."""
    found, over = Bystander(), asyncio.Event()
    async with target.bystanding_client() as client:
        loops = [asyncio.create_task(_repeat(kind, client, found, over)) for kind in _KINDS]
        try:
            yield found
        finally:
            over.set()
            await asyncio.gather(*loops)


async def _repeat(kind: str, client: httpx.AsyncClient, found: Bystander, over: asyncio.Event) -> None:
    while True:
        began = time.monotonic()
        try:
            waited = await _KINDS[kind](client)
        except Exception as error:  # whatever it is, the bystander did not get an answer
            found.failed.append(f"{kind}: {error!r}"[:300])
            waited = time.monotonic() - began
        found.calls += 1
        found.waits[kind] = max(found.waits.get(kind, 0.0), waited)
        if over.is_set():
            return
        await asyncio.sleep(0.1)


async def _stream(client: httpx.AsyncClient) -> float:
    """Returns the longest silence of a stream."""
    longest, last = 0.0, time.monotonic()
    async with client.stream("POST", "/v1/chat/completions", json=STREAM) as answer:
        text = ""
        async for piece in answer.aiter_text():
            text += piece
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        answer.raise_for_status()
    if not text.endswith("data: [DONE]\n\n"):
        raise ValueError(f"the stream ended with {text[-200:]!r}")
    return longest


async def _ask(client: httpx.AsyncClient, method: str, path: str, body: object = None) -> float:
    """Returns the time until the whole answer is there."""
    began = time.monotonic()
    (await client.request(method, path, json=body)).raise_for_status()
    return time.monotonic() - began


_KINDS: dict[str, Callable[[httpx.AsyncClient], Awaitable[float]]] = {
    "stream": _stream,
    "json": lambda client: _ask(client, "POST", "/v1/chat/completions", SHAPED),
    "embedding": lambda client: _ask(client, "POST", "/v1/embeddings", INPUT),
    "health": lambda client: _ask(client, "GET", "/healthz"),
}
