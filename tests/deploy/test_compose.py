"""compose.yaml matches the images and the code; no container engine reads it in these tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from services.auth.identity_keys import PUBLIC_NAME, ROLES
from services.catalog.registration.models_file import read_models
from services.settings.settings import Settings, load_settings
from tests.deploy.dockerfile import CONTAINERS, read
from tests.deploy.known_settings import FOREIGN, settings_names

ROOT = CONTAINERS.parent
TEXT = "${TEXT:-text}"  # the image of the text service
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text().replace(TEXT, "text"))
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("allm-")}


def environment(name: str) -> dict[str, str]:
    """Returns a container's environment: the image's variables, overridden by compose's, with its defaults."""
    service = OURS[name]
    image = read(service["image"].removeprefix("allm-")).environment()
    given = {key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value)) for key, value in service["environment"].items()}
    return {**image, **given}


def settings(name: str) -> Settings:
    return load_settings({key: value for key, value in environment(name).items() if key.startswith("ALLM_")})


def test_all_services_are_there_and_hold_to_the_same_rules() -> None:
    assert set(SERVICES) == {"catalog", "text", "audio", "image", "authorizer", "gateway", "redis"}
    for name, service in SERVICES.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
    for name, service in OURS.items():
        drain = settings(name).service
        assert (
            int(service["stop_grace_period"].removesuffix("s")) >= drain.drain_delay_seconds + drain.drain_seconds + 15
        )


def test_settings_exist() -> None:
    for service in OURS.values():
        assert set(service["environment"]) - FOREIGN <= settings_names()


def test_images_are_built_once_from_files_that_exist() -> None:
    built = [service["image"] for service in OURS.values() if "build" in service]
    assert sorted(built) == sorted({service["image"] for service in OURS.values()})
    for service in OURS.values():
        if "build" in service:
            path = ROOT / service["build"]["dockerfile"]
            assert path.exists() and path.name.startswith(service["image"].removeprefix("allm-"))
            for argument in service["build"].get("args", {}):
                assert f"ARG {argument}=" in path.read_text()


def test_the_text_service_may_be_the_one_with_vllm() -> None:
    plain, other = (read(image).environment() for image in ("text", "text-vllm"))
    assert (ROOT / "compose.yaml").read_text().count(TEXT) == 2
    assert (CONTAINERS / "text-vllm.Dockerfile").exists()
    # It mounts its volumes at the same paths as the other one.
    assert {**other, "ALLM_VLLM_PYTHON": ""} == {**plain, "ALLM_VLLM_PYTHON": ""}


def test_references_are_declared() -> None:
    for name, service in SERVICES.items():
        assert set(service["networks"]) <= set(COMPOSE["networks"]), name
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"]), name
        for other, wanted in service.get("depends_on", {}).items():
            health = SERVICES[other].get("healthcheck") or read(OURS[other]["image"].removeprefix("allm-")).health()
            assert wanted == {"condition": "service_healthy"} and health, name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / source).is_dir(), name
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert set(COMPOSE["volumes"]) == {each for each in used if not each.startswith(".")}


def test_every_folder_that_is_written_to_is_a_volume() -> None:
    for name, service in OURS.items():
        environ = environment(name)
        targets = {volume.split(":")[1] for volume in service.get("volumes", [])}
        for variable in ("ALLM_HOME", "ALLM_MODELS_DIR", "ALLM_IMAGE_FOLDER"):
            assert environ.get(variable, environ["ALLM_HOME"]) in targets, name
        assert service["tmpfs"] == ["/tmp"]  # noqa: S108 (in a container)


def test_addresses_lead_to_ports_that_the_others_open_on_a_network_of_both() -> None:
    for name in OURS:
        found = settings(name)
        gateway = (found.gateway.authorizer,) if name == "gateway" else ()
        for address in (found.model.catalog, *found.cluster.text, *found.cluster.audio, *found.cluster.image, *gateway):
            host, _, port = address.rpartition(":")
            target = name if host == "127.0.0.1" else host
            assert settings(target).service.listen == f"0.0.0.0:{port}", address
            assert set(SERVICES[target]["networks"]) & set(SERVICES[name]["networks"])
        assert found.store.redis_url == "redis://redis:6379/0"


def test_each_service_has_only_its_own_private_key() -> None:
    roles = {name: name for name in ("authorizer", "text", "audio", "image")} | {"catalog": "operator"}
    for name in OURS:
        expected = [f"identity-{roles[name]}", "identity-public"] if name in roles else []
        assert SERVICES[name].get("secrets", []) == expected, name
        auth = settings(name).auth
        read_there = [auth.key_file_of(roles[name]), auth.public_keys_file] if name in roles else []
        assert [str(path) for path in read_there] == [f"/run/secrets/{secret}" for secret in expected]
    files = {f"identity-{role}": {"file": f"./identity/{role}.key"} for role in ROLES}
    assert COMPOSE["secrets"] == {**files, "identity-public": {"file": f"./identity/{PUBLIC_NAME}"}}


def test_port_is_published_on_loopback_by_default() -> None:
    assert OURS["gateway"]["ports"] == ["${ALLM_BIND:-127.0.0.1}:8080:8080"]
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["gateway"]
    assert COMPOSE["networks"]["inside"] == {"internal": True}
    assert SERVICES["redis"]["networks"] == ["inside"]


def test_the_declared_models_are_read() -> None:
    declared = OURS["catalog"]["environment"]["ALLM_MODELS_FILE"]
    assert "./containers/compose:/etc/allm/models:ro" in OURS["catalog"]["volumes"]
    read_file = read_models((ROOT / "containers/compose" / Path(declared).name).read_bytes())
    assert [each.id for each in read_file.declarations] == ["qwen3-0.6b"]
    assert not read_file.problems
