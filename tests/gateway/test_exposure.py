"""Network exposure: the addresses on which the gateway is reachable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.exposure import confined, is_confined
from gateway.render import Gateway, render
from tests.case import case
from tests.gateway.envoy_process import EVERYWHERE, gateway_settings


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
