"""TLS in the rendered configuration, and the local socket that serves this user's commands without TLS."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from allm.text.v1 import chat_service_pb2
from trustme import CA

from gateway.render import Gateway
from gateway.transport import edge_transport, service_transport, write_secrets
from services.cli.models.connection import connect
from services.settings.tls_settings import SERVICE_NAME, KeyPair, ServiceTls, TlsSettings
from tests.gateway.envoy_process import NOWHERE, gateway_settings, running_gateway
from tests.gateway.upstream import Upstream
from tests.gateway.wire import send

PAIR = KeyPair(Path("/tls/tls.crt"), Path("/tls/tls.key"))
SERVICE = ServiceTls(Path("/ca/ca.crt"), PAIR)


def test_without_certificates_everything_is_plain(tmp_path: Path) -> None:
    assert edge_transport(tmp_path, None) is None
    assert service_transport(tmp_path, None, ("text:1",)) is None
    write_secrets(tmp_path, None, None)
    assert not list(tmp_path.iterdir())


def test_unix_sockets_stay_plain_and_do_not_mix_with_tls(tmp_path: Path) -> None:
    assert service_transport(tmp_path, SERVICE, ("unix:/t",)) is None
    assert service_transport(tmp_path, SERVICE, ("text:1", "10.0.0.1:1"))
    tls = TlsSettings(service_authority=SERVICE.authority, service_certificate=PAIR.certificate, service_key=PAIR.key)
    with pytest.raises(ValueError, match="Unix sockets, which stay plain"):
        Gateway(gateway_settings(), ("unix:/t", "10.0.0.1:1"), NOWHERE, "unix:/a", tmp_path, tls=tls)


def test_a_service_must_have_the_name_of_services(tmp_path: Path) -> None:
    write_secrets(tmp_path, PAIR, SERVICE)
    (authority,) = json.loads((tmp_path / "authority-certificates.json").read_text())["resources"]
    names = authority["validation_context"]["match_typed_subject_alt_names"]
    assert names == [{"san_type": "DNS", "matcher": {"exact": SERVICE_NAME}}]
    assert authority["validation_context"]["watched_directory"] == {"path": "/ca"}


@pytest.mark.parametrize("folders", [("/tls", "/tls"), ("/tls", "/key")])
def test_one_folder_is_watched_as_a_whole(tmp_path: Path, folders: tuple[str, str]) -> None:
    """A mounted Secret needs this: its files are symlinks that stay the same when their targets change."""
    certificate, key = folders
    write_secrets(tmp_path, KeyPair(Path(certificate, "crt"), Path(key, "key")), None)
    (edge,) = json.loads((tmp_path / "edge-certificates.json").read_text())["resources"]
    assert ("watched_directory" in edge["tls_certificate"]) == (certificate == key)


def stream(address: str) -> list[Any]:
    with connect(address) as connection:
        return list(connection.chat.StreamChatCompletion(chat_service_pb2.StreamChatCompletionRequest(model="m")))


@pytest.mark.asyncio(loop_scope="session")
async def test_commands_of_this_user_come_in_by_a_socket(socket_folder: Path, tmp_path: Path) -> None:
    made = CA().issue_cert("localhost")
    made.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    tls = TlsSettings(edge_certificate=tmp_path / "both.pem", edge_key=tmp_path / "both.pem")
    folder = socket_folder / "local"
    folder.mkdir()
    upstream, text, local = Upstream(), f"unix:{folder / 't'}", f"unix:{folder / 'g'}"
    await upstream.start(text)
    try:
        async with running_gateway(folder, (text,), NOWHERE, gateway_settings(), tls=tls, local=local) as gateway:
            events = await asyncio.to_thread(stream, local)
            assert events[-1].HasField("finished")
            assert (folder / "g").stat().st_mode & 0o077 == 0, "for this user only"
            with pytest.raises(OSError):
                await send(gateway.port, "GET", "/healthz")
    finally:
        await upstream.stop()
