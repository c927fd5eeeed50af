"""Attacks on the text service by the holder of an ordinary key. Each returns what the attacker saw."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import httpx
import msgspec

from bench.attack.target import CHAT, EMBEDDINGS, Target

_encode = msgspec.json.Encoder().encode
MEGABYTE = 1_000_000
SHOWN = 60  # characters of a message
HELLO = [{"role": "user", "content": "Hello"}]
LONG = _encode({"model": CHAT, "messages": HELLO, "max_tokens": 1500, "ignore_eos": True, "stream": True})


def slow_schema(name: str) -> dict[str, Any]:
    """Returns a schema of 1.6 kB with 4,096 combinations, few of them possible: a fifth of a second to compile."""
    ways = [
        {"properties": {name: {"type": kind}}, "required": [name]} for kind in ("string", "integer", "array", "null")
    ]
    return {"type": "object", "allOf": [{"anyOf": ways}] * 6}


def large_schema(name: str) -> dict[str, Any]:
    """Returns a schema of 2 kB whose grammar would have 300,000 symbols."""

    def one_of(part: int) -> list[dict[str, Any]]:
        names = (f"{name}_{part}_{way}" for way in range(3))
        return [{"properties": {one: {"type": "string"}}, "required": [one]} for one in names]

    return {"type": "object", "allOf": [{"anyOf": one_of(part)} for part in range(7)]}


def ambiguous_schema(name: str) -> dict[str, Any]:
    """Returns a schema of 250 kB for nested arrays that 200 rules describe: masks of 0.05 seconds for each token."""
    again = {"$ref": f"#/$defs/{name}"}
    arrays = [{"type": "array", "prefixItems": [again] * (number % 40), "items": again} for number in range(200)]
    return {"$defs": {name: {"anyOf": [*arrays, {"type": "integer"}]}}, "$ref": f"#/$defs/{name}"}


async def slow_tools(target: Target, requests: int) -> Counter[str]:
    """Sends requests with 128 strict tools each, 200 kB in all, whose schemas take half a minute to compile."""
    return await post(target, "/v1/chat/completions", [_tools(number) for number in range(requests)])


async def slow_formats(target: Target, requests: int) -> Counter[str]:
    """Sends requests whose answers have slow and large schemas, each another one."""
    schemas = ((slow_schema, large_schema)[number % 2](f"format{number}") for number in range(requests))
    return await post(target, "/v1/chat/completions", [_shaped(schema, max_tokens=1) for schema in schemas])


async def slow_masks(target: Target, requests: int) -> Counter[str]:
    """Sends requests with a schema that compiles fast, but whose every token is slow to find."""
    body = _shaped(ambiguous_schema("array"), max_tokens=100)
    body["messages"] = [{"role": "user", "content": "Repeat: [[[], [[], []]], [[], [[[]], [], []]], [[[]], [[]], []]]"}]
    return await post(target, "/v1/chat/completions", [body] * requests)


def _shaped(schema: dict[str, Any], max_tokens: int) -> dict[str, Any]:
    shape = {"type": "json_schema", "json_schema": {"name": "slow", "schema": schema}}
    return {"model": CHAT, "messages": HELLO, "max_tokens": max_tokens, "response_format": shape}


async def long_inputs(target: Target, requests: int) -> Counter[str]:
    """Sends requests to embed 30 MB of short words, and 12 MB of a single one."""
    inputs = ["a " * (15 * MEGABYTE), "a" * (12 * MEGABYTE)]
    bodies = [{"model": EMBEDDINGS, "input": inputs[number % 2]} for number in range(requests)]
    return await post(target, "/v1/embeddings", bodies)


async def many_messages(target: Target, requests: int) -> Counter[str]:
    """Sends chats of 16,384 messages of one letter, and of a million."""
    counts = (16_384, 16_384, 1_000_000)
    bodies = [
        {"model": CHAT, "messages": [{"role": "user", "content": "a"}] * counts[number % 3]}
        for number in range(requests)
    ]
    return await post(target, "/v1/chat/completions", bodies)


async def full_queue(target: Target, requests: int) -> Counter[str]:
    """Sends more chats than can wait."""
    return await post(target, "/v1/chat/completions", [{"model": CHAT, "messages": HELLO, "max_tokens": 32}] * requests)


async def stored(target: Target, requests: int) -> Counter[str]:
    """Sends requests for responses whose descriptions of tools are stored, and deletes nothing."""
    tool = {"type": "function", "name": "fat", "description": "a" * (5 * MEGABYTE), "parameters": None}
    tools = [tool, {**tool, "name": "thin", "description": ""}]
    body = {"model": CHAT, "input": "Hello", "tools": tools, "tool_choice": "none", "max_output_tokens": 1}
    return await post(target, "/v1/responses", [body] * requests)


def _tools(number: int) -> dict[str, Any]:
    tools = [
        {
            "type": "function",
            "function": {"name": f"tool{at}", "strict": True, "parameters": slow_schema(f"tool{number}_{at}")},
        }
        for at in range(128)
    ]
    return {"model": CHAT, "messages": HELLO, "tools": tools, "max_tokens": 1}


async def post(target: Target, path: str, bodies: list[dict[str, Any]]) -> Counter[str]:
    """Sends all requests at once; returns how often each status and error code came back."""
    encoded = [_encode(body) for body in bodies]
    async with target.client(target.attacker) as client:
        headers = {"content-type": "application/json"}
        calls = (outcome(client.post(path, content=body, headers=headers)) for body in encoded)
        return Counter(await asyncio.gather(*calls))


async def outcome(call: Awaitable[httpx.Response]) -> str:
    """Returns the status of an answer, with the beginning of an error's message; or the fault of the connection."""
    try:
        answer = await call
    except httpx.HTTPError as error:
        return type(error).__name__
    message = answer.json()["error"]["message"] if answer.is_error else ""
    return f"{answer.status_code} {message[:SHOWN]}".strip()
