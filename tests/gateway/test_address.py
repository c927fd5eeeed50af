"""Addresses in settings and in Envoy's configuration."""

from __future__ import annotations

import pytest

from gateway.address import bind_host, envoy_address, is_loopback, listen_address, needs_dns, url_host
from services.settings.setting import SettingError
from tests.gateway.envoy_process import EVERYWHERE


def test_envoy_address() -> None:
    assert envoy_address("unix:/run/a.sock") == {"pipe": {"path": "/run/a.sock", "mode": 0o600}}
    assert envoy_address("127.0.0.1:50051") == {"socket_address": {"address": "127.0.0.1", "port_value": 50051}}
    assert envoy_address("[::1]:50051") == {"socket_address": {"address": "::1", "port_value": 50051}}
    assert envoy_address("text.svc:1") == {"socket_address": {"address": "text.svc", "port_value": 1}}


@pytest.mark.parametrize("text", ["", "localhost", ":50051", "host:", "host:x"])
def test_invalid_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        envoy_address(text)


def test_listen_address() -> None:
    assert listen_address("localhost", 1) == {"socket_address": {"address": "127.0.0.1", "port_value": 1}}
    assert listen_address("::", 1) == {"socket_address": {"address": "::", "port_value": 1, "ipv4_compat": True}}
    with pytest.raises(SettingError, match="ALLM_HOST"):
        listen_address("example.org", 1)


def test_names_are_looked_up_and_literals_are_not() -> None:
    assert needs_dns("text.svc:50051")
    assert needs_dns("localhost:50051")
    assert not needs_dns("127.0.0.1:50051")
    assert not needs_dns("[::1]:50051")
    assert not needs_dns("unix:/run/a.sock")


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, (EVERYWHERE, "::", "10.0.0.1")))


def test_urls_for_this_machine() -> None:
    assert url_host(EVERYWHERE) == "127.0.0.1"
    assert url_host("::") == "127.0.0.1"
    assert url_host("::1") == "[::1]"
    assert url_host("localhost") == "127.0.0.1"
    assert url_host("10.0.0.1") == "10.0.0.1"
    assert bind_host("localhost") == "127.0.0.1"
