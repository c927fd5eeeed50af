"""The access log: its fields, and the secrets it never contains."""

from __future__ import annotations

import json

import pytest

from tests.gateway.envoy_process import RunningGateway
from tests.gateway.upstream import Upstream
from tests.gateway.wire import send

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_one_json_line_a_request(gateway: RunningGateway, upstream: Upstream) -> None:
    headers = {"authorization": "Bearer sk-secret-1", "content-type": "application/json"}
    body = b'{"messages": "secret-2"}'
    reply = await send(gateway.port, "POST", "/v1/chat/completions?api_key=secret-3", headers, body)
    request_id = reply.headers["x-request-id"]
    lines = await gateway.logged(request_id)
    (entry,) = [entry for line in lines if (entry := json.loads(line)).get("request_id") == request_id]
    assert entry["method"] == "POST"
    assert entry["path"] == "/v1/chat/completions"
    assert entry["rpc"] == "/allm.openai.v1.TextService/CreateChatCompletion"
    assert (entry["status"], entry["client"], entry["protocol"]) == (200, "anonymous", "HTTP/1.1")
    assert (entry["bytes_in"], entry["bytes_out"]) == (len(body), len(reply.body))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/unknown", "/v1/models/nothing"])
async def test_no_secrets(gateway: RunningGateway, upstream: Upstream, path: str) -> None:
    """The log has no secrets, neither for a successful request nor for one that Envoy rejects."""
    too_large = b'{"messages": "secret-2"}' + b" " * 1024 * 1024
    for body in (b"secret-2", too_large, None):
        headers = {"authorization": "Bearer sk-secret-1"}
        reply = await send(gateway.port, "POST" if body else "GET", f"{path}?api_key=secret-3", headers, body)
    assert "secret-" not in "\n".join(await gateway.logged(reply.headers["x-request-id"]))


async def test_every_line_is_json(gateway: RunningGateway, upstream: Upstream) -> None:
    reply = await send(gateway.port, "GET", "/v1/models")
    for line in await gateway.logged(reply.headers["x-request-id"]):
        assert isinstance(json.loads(line), dict)
