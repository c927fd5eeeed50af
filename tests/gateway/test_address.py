"""Addresses in settings and in Envoy's configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.address import (
    bind_host,
    confined,
    envoy_address,
    is_confined,
    is_loopback,
    listen_address,
    needs_dns,
    url_host,
)
from gateway.render import Gateway, render
from services.settings.setting import SettingError
from tests.case import case
from tests.gateway.envoy_process import EVERYWHERE, gateway_settings


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


def test_loopback_is_obeyed() -> None:
    for host in ["127.0.0.1", "localhost", "::1", "127.8.8.8"]:
        for auth in ["none", "keys", "open"]:
            with case(host=host, auth=auth):
                settings = gateway_settings(host=host, auth=auth)
                assert not is_confined(settings)
                assert confined(settings) is settings


@pytest.mark.parametrize("host", [EVERYWHERE, "::", "192.0.2.1"])
def test_listening_elsewhere_requires_access_control(host: str) -> None:
    settings = gateway_settings(host=host, port=8080, auth="none")
    assert is_confined(settings)
    assert confined(settings).host == "127.0.0.1"
    for auth in ("keys", "open"):
        assert not is_confined(gateway_settings(host=host, auth=auth))


@pytest.mark.parametrize(("auth", "host"), [("none", "127.0.0.1"), ("keys", EVERYWHERE), ("open", EVERYWHERE)])
def test_rendered_configuration_listens_there(auth: str, host: str) -> None:
    """The listener address depends on the settings, not on the process that starts Envoy."""
    settings = gateway_settings(host=EVERYWHERE, port=8080, auth=auth, authorizer="unix:/authorizer")
    config = render(Gateway(settings, ("unix:/t",), "unix:/c", admin="unix:/a", folder=Path("/f")), Path("/f/d.pb"))
    listener = config.split("static_resources:", 1)[1].split("enable_reuse_port", 1)[0]
    assert json.dumps({"socket_address": {"address": host, "port_value": 8080}}) in listener
    assert ("/authorizer" in config) == (auth == "keys")
