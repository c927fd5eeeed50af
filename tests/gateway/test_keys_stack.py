"""`allm serve` with ALLM_AUTH=keys, as an operator uses it: the first key, forged identities, killed services."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import grpc
import ollama
import openai
import pytest
from allm.models.v1 import residency_service_pb2, residency_service_pb2_grpc
from allm.text.v1 import chat_pb2, chat_service_pb2, response_service_pb2

from services.auth.identity import HEADER, Identity, sign
from services.auth.identity_keys import PUBLIC_NAME, ROLES, read_key
from services.authorizer.__main__ import SNAPSHOT
from tests.gateway.key_callers import CREATE_KEY, LIST, PROTOCOLS, Way, ask, bearer
from tests.gateway.wire import send
from tests.identities import new_key
from tests.stack import MODEL, Stack, environment, running_stack

PATIENCE = 60.0  # seconds
REVOKED_SECONDS = 5.0  # the documented bound
CHAT = "/v1/chat/completions"
ASKED = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}).encode()
JSON = {"content-type": "application/json"}


def allm(stack: Stack, *arguments: str) -> str:
    """Runs a command without ALLM_AUTH in its environment; returns its output."""
    command = [sys.executable, "-m", "services.cli", *arguments]
    environ = environment(stack.home)
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def root(guarded: Stack) -> str:
    """Creates the first key as an operator does; returns its secret."""
    made = json.loads(allm(guarded, "keys", "create", "root", "--scope", "admin", "--scope", "inference", "--json"))
    return str(made["secret"])


async def create(stack: Stack, root: str, **wanted: Any) -> tuple[str, str]:
    """Creates another key over REST; returns its id and its secret."""
    body = json.dumps({"name": "more", **wanted}).encode()
    reply = await send(stack.port, "POST", "/v1/api_keys", {**bearer(root), **JSON}, body)
    assert reply.status == 200, reply
    return reply.json["key"]["id"], reply.json["secret"]


async def until(
    stack: Stack, key: str, status: str, protocol: str = "rest", way: Way = LIST, seconds: float = PATIENCE
) -> None:
    async with asyncio.timeout(seconds):
        while (await ask(protocol, stack.port, way, bearer(key))).status != status:  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.05)


def children(stack: Stack) -> dict[str, int]:
    found: dict[str, int] = stack.note["children"]
    return found


async def restarted(stack: Stack, name: str, before: int) -> None:
    """Waits until the supervisor has restarted a child and recorded its new process id."""
    async with asyncio.timeout(PATIENCE):
        while children(stack).get(name, before) == before:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


@asynccontextmanager
async def away(stack: Stack, name: str) -> AsyncIterator[None]:
    """Suspends a child process during the block."""
    process = children(stack)[name]
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def logged(stack: Stack, name: str) -> str:
    return (stack.home / "logs" / f"{name}.log").read_text()


async def until_logged(stack: Stack, name: str, found: Callable[[str], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not found(logged(stack, name)):  # noqa: ASYNC110 - a file has no events
            await asyncio.sleep(0.05)


async def test_the_start_says_that_keys_are_needed_and_makes_the_keys(guarded: Stack, root: str) -> None:
    said = (guarded.home / "output.txt").read_text()
    assert "allm keys create" in said
    assert "Authorization: Bearer" in said
    folder = guarded.home / "identity"
    files = {folder / f"{role}.key" for role in ROLES}
    assert set(folder.iterdir()) == {folder / PUBLIC_NAME, *files}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert (guarded.home / "identity.secret").read_text() == "of an earlier release", "left alone"
    listed = allm(guarded, "keys", "list")
    assert "root" in listed
    assert root not in listed
    for protocol in PROTOCOLS:
        assert (await ask(protocol, guarded.port, LIST)).status == "UNAUTHENTICATED"
        assert (await ask(protocol, guarded.port, LIST, bearer(root))).status == "OK"
    everything = "".join(path.read_text() for path in (guarded.home / "logs").iterdir())
    assert root not in everything
    assert not [path for path in files if path.read_text().splitlines()[1] in everything]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_forged_identity_grants_no_admin_rights(guarded: Stack, root: str, protocol: str) -> None:
    _, key = await create(guarded, root)
    claimed = Identity("key_root", frozenset(("admin", "inference", "service")), expires=int(time.time()) + 60)
    for signing in (new_key(), *(read_key(guarded.home / "identity" / f"{role}.key") for role in ROLES)):
        forged = {HEADER: sign(claimed, signing), "x-client-id": "key_root"}
        assert (await ask(protocol, guarded.port, CREATE_KEY, forged)).status == "UNAUTHENTICATED"
        assert (await ask(protocol, guarded.port, CREATE_KEY, {**forged, **bearer(key)})).status == "PERMISSION_DENIED"


async def test_an_admin_may_watch_the_memory_of_a_service_that_gets_no_admin(guarded: Stack, root: str) -> None:
    _, user = await create(guarded, root)
    await until(guarded, user, "OK")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{guarded.port}") as channel:
        residency = residency_service_pb2_grpc.ResidencyServiceStub(channel)

        async def look(key: str) -> Any:
            metadata = tuple(bearer(key).items())
            return await residency.WatchResidency(
                residency_service_pb2.WatchResidencyRequest(), metadata=metadata, timeout=PATIENCE
            ).read()

        assert (await look(root)).residency.host.total_bytes > 0
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await look(user)
        assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_model_that_is_not_on_the_list_is_refused(guarded: Stack, root: str, protocol: str) -> None:
    part = chat_pb2.ContentPart(text="Hi")
    message = chat_pb2.ChatMessage(role=chat_pb2.CHAT_ROLE_USER, content=[part])
    request = chat_service_pb2.CreateChatCompletionRequest(model=MODEL, messages=[message])
    request.sampling.max_tokens = 2
    way = Way("POST", CHAT, "/allm.text.v1.ChatService/CreateChatCompletion", request, ASKED)
    _, others = await create(guarded, root, models=["llama*"])
    _, its = await create(guarded, root, models=[f"{MODEL[:4]}*"])
    for key in (others, its):
        await until(guarded, key, "OK")
    json_too = JSON if protocol == "rest" else {}
    reported = await ask(protocol, guarded.port, way, {**bearer(others), **json_too})
    assert (reported.status, reported.reason) == ("PERMISSION_DENIED", "FORBIDDEN")
    assert MODEL in reported.message
    assert (await ask(protocol, guarded.port, way, {**bearer(its), **json_too})).status == "OK"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_responses_of_another_key_are_hidden(guarded: Stack, root: str, protocol: str) -> None:
    (_, owner), (_, other) = await create(guarded, root), await create(guarded, root)
    for key in (owner, other):
        await until(guarded, key, "OK")
    body = json.dumps({"model": MODEL, "input": "Hi", "max_output_tokens": 16}).encode()
    made = await send(guarded.port, "POST", "/v1/responses", {**bearer(owner), **JSON}, body)
    assert made.status == 200, made
    found = response_service_pb2.GetResponseRequest(id=made.json["id"])
    path = f"/v1/responses/{made.json['id']}"
    way = Way("GET", path, "/allm.text.v1.ResponseService/GetResponse", found)
    assert (await ask(protocol, guarded.port, way, bearer(owner))).status == "OK"
    for key in (other, root):
        assert (await ask(protocol, guarded.port, way, bearer(key))).status == "NOT_FOUND"


async def test_openais_client_knows_every_refusal(guarded: Stack, root: str) -> None:
    _, key = await create(guarded, root, requests_per_minute=1)

    def client(key: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=guarded.base_url, api_key=key, max_retries=0)

    async with client(key) as limited, client("sk-allm-wrong") as stranger:
        assert MODEL in [model.id async for model in limited.models.list()]
        with pytest.raises(openai.RateLimitError) as over:
            await limited.models.list()
        assert over.value.code == "rate_limit_exceeded"
        with pytest.raises(openai.AuthenticationError) as wrong:
            await stranger.models.list()
        assert wrong.value.code == "invalid_api_key"
        with pytest.raises(openai.PermissionDeniedError):
            await limited.models.delete(MODEL)


async def test_anthropics_client_knows_every_refusal(guarded: Stack, root: str) -> None:
    """It sends the key in `x-api-key`."""
    _, key = await create(guarded, root, requests_per_minute=2)

    def client(key: str) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{guarded.port}", api_key=key, max_retries=0)

    async with client(key) as limited, client("sk-allm-wrong") as stranger:
        assert MODEL in [model.id async for model in limited.models.list()]
        asked: Any = {"model": "unknown", "messages": [{"role": "user", "content": "Hi"}]}
        with pytest.raises(anthropic.NotFoundError):
            await limited.messages.count_tokens(**asked)
        with pytest.raises(anthropic.RateLimitError) as over:
            await limited.messages.count_tokens(**asked)
        assert over.value.type == "rate_limit_error"
        with pytest.raises(anthropic.AuthenticationError) as wrong:
            await stranger.messages.create(**asked, max_tokens=1)
        assert wrong.value.type == "authentication_error"
    logs = "".join(path.read_text(errors="replace") for path in (guarded.home / "logs").glob("*.log"))
    assert key not in logs


async def test_ollamas_client_knows_every_refusal(guarded: Stack, root: str) -> None:
    """It sends the key that Home Assistant and Open WebUI ask for as a bearer token."""
    _, key = await create(guarded, root, requests_per_minute=3)

    def client(key: str) -> ollama.AsyncClient:
        return ollama.AsyncClient(f"http://127.0.0.1:{guarded.port}", headers={"Authorization": f"Bearer {key}"})

    async def status(call: Any) -> int:
        with pytest.raises(ollama.ResponseError) as refused:
            await call
        return refused.value.status_code

    async with client(key) as limited, client(root) as operator, client("sk-allm-wrong") as stranger:
        assert f"{MODEL}:latest" in {model.model for model in (await limited.list()).models}
        assert await status(limited.pull("hf.co/org/m")) == 403
        assert await status(limited.delete(MODEL)) == 403
        assert await status(limited.chat("unknown")) == 404
        assert await status(limited.chat("unknown")) == 404
        assert await status(limited.chat("unknown")) == 429
        assert await status(stranger.list()) == 401
        assert await status(operator.delete("unknown")) == 404
        assert await status(operator.pull("unknown")) == 400
        asked = operator.chat(MODEL, [{"role": "user", "content": "Hi"}], options={"num_predict": 1, "made_up": 1})
        assert await status(asked) == 400, "this stack refuses unknown parameters"


async def test_every_log_names_the_key_as_the_caller(guarded: Stack, root: str) -> None:
    key_id, key = await create(guarded, root)
    reply = await send(guarded.port, "POST", CHAT, {**bearer(key), **JSON, "x-client-id": "somebody"}, b"{}")
    assert reply.status == 400, "the service says what is missing; to load a model for this would take long"
    request_id = reply.headers["x-request-id"]
    for name in ("text", "gateway"):
        await until_logged(guarded, name, lambda log: request_id in log)
        (line,) = [
            json.loads(line) for line in logged(guarded, name).splitlines() if request_id in line and '"client"' in line
        ]
        assert line["client"] == key_id


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_revoked_key_is_refused(guarded: Stack, root: str, protocol: str) -> None:
    key_id, key = await create(guarded, root)
    await until(guarded, key, "OK", protocol)
    reply = await send(guarded.port, "DELETE", f"/v1/api_keys/{key_id}", bearer(root))
    assert (reply.status, "revoke_time" in reply.json["key"]) == (200, True)
    await until(guarded, key, "UNAUTHENTICATED", protocol, seconds=REVOKED_SECONDS)
    unknown = await send(guarded.port, "DELETE", "/v1/api_keys/key_0", bearer(root))
    assert (unknown.status, unknown.error["code"], unknown.error["param"]) == (404, "key_not_found", "id")


async def test_a_key_that_expires(guarded: Stack, root: str) -> None:
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3))
    _, key = await create(guarded, root, expire_time=soon)
    await until(guarded, key, "UNAUTHENTICATED")
    past = json.dumps({"name": "past", "expire_time": "2020-01-01T00:00:00Z"}).encode()
    reply = await send(guarded.port, "POST", "/v1/api_keys", {**bearer(root), **JSON}, past)
    assert (reply.status, reply.error["param"]) == (400, "expire_time")


@pytest.mark.slow
async def test_the_catalog_may_die_and_the_authorizer_too(guarded: Stack, root: str) -> None:
    key_id, key = await create(guarded, root)
    await until(guarded, key, "OK")
    chat = {**bearer(key), **JSON}

    async def chats() -> int:
        return (await send(guarded.port, "POST", CHAT, chat, ASKED)).status

    # The catalog is killed: keys remain valid, and after its restart the authorizer follows changes again.
    before = children(guarded)["catalog"]
    os.kill(before, signal.SIGKILL)
    assert await chats() == 200
    await restarted(guarded, "catalog", before)
    assert await chats() == 200

    # The catalog is suspended and the authorizer is killed: it restores its keys from the snapshot.
    async with away(guarded, "catalog"):
        before = children(guarded)["authorizer"]
        assert key_id in (guarded.home / SNAPSHOT).read_text()
        os.kill(before, signal.SIGKILL)
        await restarted(guarded, "authorizer", before)
        assert await chats() == 200
        wrong = await send(guarded.port, "POST", CHAT, {**bearer("sk-allm-wrong"), **JSON}, ASKED)
        assert wrong.status == 401, "and nobody else gets in"

    # The catalog resumes, and a key revoked now becomes invalid.
    async with asyncio.timeout(PATIENCE):
        while (await send(guarded.port, "DELETE", f"/v1/api_keys/{key_id}", bearer(root))).status != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await until(guarded, key, "UNAUTHENTICATED")


async def test_a_backup_of_the_running_stack_restores_its_models_and_keys(
    guarded: Stack, root: str, tmp_path: Path
) -> None:
    copy = tmp_path / "catalog.backup"
    said = allm(guarded, "catalog", "backup", str(copy))
    assert said.startswith(f"{copy} is a checked copy of the catalog (models: 1, keys: ")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        allm(guarded, "catalog", "backup", str(copy))
    assert refused.value.stderr == f"allm: {copy} exists: choose another name, or replace it with --force\n"
    allm(guarded, "catalog", "backup", str(copy), "--force")
    home = tmp_path / "restored"
    home.mkdir()
    shutil.copyfile(copy, home / "catalog.db")
    with running_stack(home, ALLM_AUTH="keys") as restored:
        before, after = [await send(one.port, "GET", "/v1/models", bearer(root)) for one in (guarded, restored)]
        assert (before.status, after.status) == (200, 200)
        assert after.json == before.json
        assert (await send(restored.port, "POST", CHAT, {**bearer(root), **JSON}, ASKED)).status == 200
        assert (await ask("rest", restored.port, LIST, bearer("sk-allm-unknown"))).status == "UNAUTHENTICATED"
