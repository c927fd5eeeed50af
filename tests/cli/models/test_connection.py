"""The address that `allm models` connects to, and its error when no server answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.models.connection import find_address, read_note, warning
from services.cli.problem import Problem
from services.settings.settings import load_settings
from tests.cli.models.catalog_stand_in import LONG, Commands, allm_models, desired
from tests.ports import free_port
from tests.stack import environment


def test_the_address_asked_for_comes_first_then_the_running_stack_then_the_settings() -> None:
    settings = load_settings({"ALLM_HOST": "0.0.0.0", "ALLM_PORT": "8123"})  # noqa: S104 (not bound)
    assert find_address("", settings, {}) == "127.0.0.1:8123"
    note = {"grpc": "127.0.0.1:9999"}
    assert find_address("", settings, note) == "127.0.0.1:9999"
    assert find_address("far.example:443", settings, note) == "far.example:443"
    assert find_address("unix:/run/allm.sock", settings, note) == "unix:/run/allm.sock"


def test_a_server_that_this_home_does_not_know_is_named(tmp_path: Path) -> None:
    environ = {"ALLM_HOME": str(tmp_path), "ALLM_PORT": "8123"}
    settings = load_settings(environ)
    assert str(tmp_path) in (said := warning("", settings, {}))
    assert "127.0.0.1:8123" in said
    assert not warning("far.example:443", settings, {})
    assert not warning("", load_settings({**environ, "ALLM_CATALOG": "catalog:50050"}), {}), "as set up in a container"
    assert not warning("", settings, {"grpc": "127.0.0.1:8123"})


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"grpc": 7}'])
def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    assert find_address("", load_settings({}), read_note(tmp_path)) == "127.0.0.1:8080"


@pytest.mark.parametrize("address", ["example.org", "example.org:http", ":80"])
def test_an_address_has_a_host_and_a_port(address: str) -> None:
    with pytest.raises(Problem, match="host:port"):
        find_address(address, load_settings({}), {})


def test_the_running_stack_is_found(models: Commands) -> None:
    models.catalog.models = {"m": desired("m")}
    (models.home / "run.json").write_text(json.dumps({"grpc": models.address}))
    done = allm_models(models.home, "show", "m")
    assert done.status == 0
    assert "hf://org/m" in done.stdout


@pytest.mark.parametrize("command", [("list",), ("list", "--json"), ("add", "m", "hf://o/n", "--format", "gguf")])
def test_no_replica(tmp_path: Path, command: tuple[str, ...]) -> None:
    address = f"127.0.0.1:{free_port()}"
    done = allm_models(tmp_path, *command, "--address", address)
    assert (done.status, done.stdout) == (1, "")
    assert done.stderr == (
        f"allm: allm does not answer on {address}: start it with `allm serve`, or give its address with --address\n"
    )


def test_invalid_setting_is_reported_as_everywhere(tmp_path: Path) -> None:
    done = allm_models(tmp_path, "list", ALLM_PORT="http")
    assert done.status == 2
    assert done.stderr.startswith("allm: ALLM_PORT=")


def test_the_command_itself_as_a_user_meets_it(models: Commands) -> None:
    models.catalog.models = {"m": desired("m")}
    command = [sys.executable, "-m", "services.cli", "models"]
    environ = {**environment(models.home), "COLUMNS": "120", "NO_COLOR": "1"}

    def allm(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments], env=environ, capture_output=True, text=True, check=False, timeout=LONG
        )

    shown = allm("--help").stdout
    for name in ("add", "list", "show", "update", "remove", "load", "unload", "why", "bench", "check", "import"):
        assert f" {name} " in shown
    listed = allm("list", "--json", "--address", models.address)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert json.loads(listed.stdout)["models"][0]["id"] == "m"
    refused = allm("show", "nobody", "--address", models.address)
    assert (refused.returncode, refused.stdout, refused.stderr) == (1, "", "allm: there is no model 'nobody'\n")
