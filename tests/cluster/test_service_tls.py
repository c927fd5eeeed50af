"""Mutual TLS between gateway, services and catalog: a peer without a certificate of the authority is refused."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc
from trustme import CA

from services.rpc.channel import blocking_channel, service_channel
from services.settings.setting import SettingError
from services.settings.tls_settings import SERVICE_NAME, ServiceTls, read_tls
from tests.cluster.certificates import Certificate, issue
from tests.cluster.gateway_command import gateway_command
from tests.ports import free_port
from tests.stack import environment

SECONDS = 120
REQUEST = chat_service_pb2.CreateChatCompletionRequest(model="four")


def tls(made: Certificate) -> ServiceTls:
    found = read_tls(made.service()).service
    assert found
    return found


@asynccontextmanager
async def tiny_service(folder: Path, made: Certificate, listen: str = "") -> AsyncIterator[str]:
    """Runs a tiny service with certificates, as every service is run; yields its address."""
    address = listen or f"127.0.0.1:{free_port()}"
    settings = {"ALLM_LISTEN": address, "ALLM_DRAIN_DELAY_SECONDS": "0"} | made.service()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.rpc.tiny_service",
        env=environment(folder, **settings),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr
        while b'"serving"' not in (line := await process.stderr.readline()):
            assert line, "it has ended"
        yield address
    finally:
        process.kill()
        await process.communicate()


async def ask(channel: grpc.aio.Channel) -> str:
    stub = chat_service_pb2_grpc.ChatServiceStub(channel)
    answer = await stub.CreateChatCompletion(REQUEST, timeout=SECONDS)
    return str(answer.model)


async def refused(channel: grpc.aio.Channel) -> bool:
    async with channel:
        try:
            await ask(channel)
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.UNAVAILABLE
    return False


async def test_only_who_has_a_certificate_of_the_authority_is_let_in(tmp_path: Path) -> None:
    authority, stranger = CA(), CA()
    ours = issue(tmp_path / "ours", authority, SERVICE_NAME)
    theirs = issue(tmp_path / "theirs", stranger, SERVICE_NAME)
    # Trusts our service, but presents a certificate of another authority.
    mixed = Certificate(ours.authority, theirs.chain, theirs.key)
    root = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    named = (("grpc.ssl_target_name_override", SERVICE_NAME),)
    async with tiny_service(tmp_path, ours) as address:
        async with service_channel(address, tls(ours)) as channel:
            assert await ask(channel) == "4 characters"
        assert await refused(grpc.aio.insecure_channel(address))
        assert await refused(grpc.aio.secure_channel(address, root, named))
        assert await refused(service_channel(address, tls(mixed)))
        assert await refused(service_channel(address, tls(theirs)))

        def blocking() -> str:
            with blocking_channel(address, tls(ours)) as channel:
                return str(chat_service_pb2_grpc.ChatServiceStub(channel).CreateChatCompletion(REQUEST).model)

        assert await asyncio.to_thread(blocking) == "4 characters"


async def test_a_certificate_of_the_authority_for_something_else_is_no_service(tmp_path: Path) -> None:
    authority = CA()
    ours = issue(tmp_path / "ours", authority, SERVICE_NAME)
    other = issue(tmp_path / "other", authority, "localhost", "127.0.0.1")
    async with tiny_service(tmp_path, other) as address:
        assert await refused(service_channel(address, tls(ours)))


async def test_unix_sockets_stay_plain(tmp_path: Path) -> None:
    made = issue(tmp_path, CA(), SERVICE_NAME)
    async with tiny_service(tmp_path, made, f"unix:{tmp_path}/s") as address:
        for certificates in (None, tls(made)):
            async with service_channel(address, certificates) as channel:
                assert await ask(channel) == "4 characters"


async def test_renewed_certificates_are_taken_up_by_both_sides(tmp_path: Path) -> None:
    """Replaces the authority: a channel that trusted the old one reconnects, and its running call continues."""
    made = issue(tmp_path / "tls", CA(), SERVICE_NAME)
    go = tmp_path / "go"
    async with (
        asyncio.timeout(SECONDS),
        tiny_service(tmp_path, made) as address,
        service_channel(address, tls(made)) as channel,
    ):
        stub = chat_service_pb2_grpc.ChatServiceStub(channel)
        stream = stub.StreamChatCompletion(chat_service_pb2.StreamChatCompletionRequest(model=str(go)))
        assert (await stream.read()).HasField("started")
        issue(tmp_path / "tls", CA(), SERVICE_NAME)
        assert await ask(channel) == "4 characters"
        async with service_channel(address, tls(made)) as another:
            assert await ask(another) == "4 characters"
        go.touch()
        assert (await stream.read()).HasField("finished")


async def test_the_gateway_shows_its_certificate_and_takes_up_a_renewed_one(tmp_path: Path) -> None:
    ours, address = issue(tmp_path / "ours", CA(), SERVICE_NAME), f"127.0.0.1:{free_port()}"
    settings = {"ALLM_GATEWAY_TEXT": address} | ours.service()
    async with asyncio.timeout(SECONDS), gateway_command(tmp_path, **settings) as gateway:
        async with tiny_service(tmp_path, ours, address):
            await gateway.healthy()
            async with grpc.aio.insecure_channel(gateway.grpc_address) as channel:
                assert await ask(channel) == "4 characters"
        issue(tmp_path / "ours", CA(), SERVICE_NAME)  # of an authority unrelated to the previous certificate
        while await gateway.healthz() == 200:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
        async with tiny_service(tmp_path, ours, address):
            await gateway.healthy()


@pytest.mark.parametrize(
    ("names", "same_authority"), [((SERVICE_NAME,), False), (("localhost", "127.0.0.1"), True)], ids=["ca", "name"]
)
async def test_the_gateway_does_not_believe_everybody(
    tmp_path: Path, names: tuple[str, ...], same_authority: bool
) -> None:
    authority = CA()
    ours = issue(tmp_path / "ours", authority, SERVICE_NAME)
    theirs = issue(tmp_path / "theirs", authority if same_authority else CA(), *names)
    async with (
        asyncio.timeout(SECONDS),
        tiny_service(tmp_path, theirs) as address,
        gateway_command(tmp_path, ALLM_GATEWAY_TEXT=address, **ours.service()) as gateway,
    ):
        kind = "fail_verify_san" if same_authority else "fail_verify_error"
        while not await gateway.count(f"cluster.text.ssl.{kind}"):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
        assert await gateway.healthz() == 503


@pytest.mark.parametrize("wrong", ["authority", "chain", "key"])
def test_files_that_are_none_are_refused_by_name(tmp_path: Path, wrong: str) -> None:
    made = issue(tmp_path, CA(), SERVICE_NAME)
    getattr(made, wrong).write_text("no certificate")
    with pytest.raises(SettingError, match="ALLM_SERVICE_TLS_"):
        tls(made)
