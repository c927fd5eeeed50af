"""The paths of OpenAI's Responses API: each reaches its RPC with the values of its path and query."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.envoy_process import RunningGateway
from tests.gateway.upstream import Upstream
from tests.gateway.wire import send

pytestmark = pytest.mark.asyncio(loop_scope="session")
ID = {"response_id": "resp_1"}
BODY = b'{"b": 1, "a": null}'


@pytest.mark.parametrize(
    ("method", "path", "body", "rpc", "given"),
    [
        ("POST", "", BODY, "CreateResponse", BODY.decode()),
        ("POST", "/input_tokens", BODY, "CountInputTokens", BODY.decode()),
        ("GET", "/resp_1", None, "GetResponse", ID),
        (
            "GET",
            "/resp_1?stream=true&starting_after=7&include=a&include=b",
            None,
            "GetResponse",
            {**ID, "stream": True, "starting_after": "7", "include": ["a", "b"]},
        ),
        ("GET", "/resp_1?include[]=a&include%5B%5D=b", None, "GetResponse", {**ID, "include_brackets": ["a", "b"]}),
        ("GET", "/resp_1?response_id=resp_2&unknown=x", None, "GetResponse", ID),
        ("DELETE", "/resp_1", None, "DeleteResponse", ID),
        ("POST", "/resp_1/cancel", None, "CancelResponse", ID),
        ("POST", "/resp_1/cancel", b"{}", "CancelResponse", ID),
        (
            "GET",
            "/resp_1/input_items?order=asc&after=msg_1&limit=5",
            None,
            "ListInputItems",
            {**ID, "order": "asc", "after": "msg_1", "limit": 5},
        ),
    ],
)
async def test_a_path(
    gateway: RunningGateway, upstream: Upstream, method: str, path: str, body: bytes | None, rpc: str, given: Any
) -> None:
    reply = await send(gateway.port, method, f"/v1/responses{path}", body=body)
    assert (reply.status, reply.json) == (200, [rpc, given])
    assert upstream.metadata[-1]["x-client-id"] == "anonymous"


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/resp_1"), ("GET", ""), ("POST", "/resp_1"), ("POST", "/compact"), ("GET", "/a/b")]
)
async def test_no_other_path(gateway: RunningGateway, upstream: Upstream, method: str, path: str) -> None:
    reply = await send(gateway.port, method, f"/v1/responses{path}", body=b"{}" if method != "GET" else None)
    assert reply.status == 404
    assert upstream.metadata == []
