"""The `allm` command as a user sees it: help, version, and plain messages for failed starts."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.auth.identity_keys import ROLES, PublicKeyFile, read_key
from services.cli.main import app
from tests.stack import environment


def allm(home: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", *arguments]
    environ = {**environment(home), "COLUMNS": "120", "NO_COLOR": "1", **settings}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)


def test_alone_it_shows_its_help(tmp_path: Path) -> None:
    for arguments in ((), ("--help",)):
        shown = allm(tmp_path, *arguments)
        assert "serve" in shown.stdout
        assert "OpenAI" in shown.stdout


def test_help_of_serve_names_the_settings(tmp_path: Path) -> None:
    shown = allm(tmp_path, "serve", "--help").stdout
    for name in ("ALLM_MODELS", "ALLM_HOST", "ALLM_PORT", "ALLM_ALLOWED_HOSTS", "ALLM_CORS_ORIGINS", "ALLM_HOME"):
        assert name in shown


def test_version(tmp_path: Path) -> None:
    done = allm(tmp_path, "--version")
    assert done.returncode == 0
    assert done.stdout.startswith("allm ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALLM_PORT", "http"),
        ("ALLM_HOST", "example.org"),
        ("ALLM_THREADS", "-1"),
        ("ALLM_CORS_ORIGINS", "*"),
        ("ALLM_IDENTITY_SECRET_FILE", "/old/identity.secret"),
    ],
)
def test_a_wrong_setting_stops_the_start(tmp_path: Path, name: str, value: str) -> None:
    done = allm(tmp_path, "serve", **{name: value})
    assert done.returncode == 2
    assert done.stderr.startswith(f"allm: {name}=")
    assert "must be" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_keys_it_stays_on_this_machine_and_says_so(tmp_path: Path) -> None:
    """The port is taken on loopback only, so the error proves that the gateway listens on loopback."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        settings = {"ALLM_PORT": port, "ALLM_MODELS": "m=/nowhere/m.gguf"}
        done = allm(tmp_path, "serve", ALLM_HOST="192.0.2.1", **settings)  # a documentation address: no machine has it
        assert "ALLM_HOST=192.0.2.1 is ignored" in done.stdout
        assert "ALLM_AUTH=keys" in done.stdout
        assert done.returncode == 1
        assert f"port {port}" in done.stderr
        open_to_all = allm(tmp_path, "serve", ALLM_HOST="192.0.2.1", ALLM_AUTH="open", **settings)
        assert "is ignored" not in open_to_all.stdout
        assert "192.0.2.1" in open_to_all.stderr


def test_serve_takes_host_and_port_as_options(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        done = allm(tmp_path, "serve", "--host", "localhost", "--port", port, ALLM_PORT="1", ALLM_HOST="192.0.2.1")
    assert done.returncode == 1
    assert f"port {port} on localhost is in use" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(tmp_path: Path, shell: str) -> None:
    done = allm(tmp_path, "--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0
    assert "_ALLM_COMPLETE" in done.stdout or "_COMPLETE" in done.stdout
    typed = {"_ALLM_COMPLETE": f"complete_{shell}", "COMP_WORDS": "allm mod", "COMP_CWORD": "1"}
    typed |= {"_TYPER_COMPLETE_ARGS": "allm mod", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert "models" in allm(tmp_path, **typed).stdout


@pytest.mark.parametrize("variable", ["ALLM_PORT", "ALLM_METRICS_PORT"])
def test_a_taken_port_stops_the_start(tmp_path: Path, variable: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        settings = {"ALLM_PORT": "0", variable: port, "ALLM_MODELS": "m=/nowhere/m.gguf"}
        done = allm(tmp_path, "serve", **settings)
    assert done.returncode == 1
    assert f"port {port}" in done.stderr
    assert variable in done.stderr
    assert "Traceback" not in done.stderr


def test_it_creates_all_keys_once(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "identity"
    made = CliRunner().invoke(app, ("identity", "create", str(folder)))
    assert made.exit_code == 0, made.output
    files = {role: folder / f"{role}.key" for role in ROLES}
    assert set(folder.iterdir()) == {*files.values(), folder / "public.keys"}
    public = PublicKeyFile(folder / "public.keys").read()
    assert {role: public[read_key(path).id].roles for role, path in files.items()} == {role: {role} for role in ROLES}
    assert all(path.name in made.stdout for path in folder.iterdir())
    before = {path: path.read_bytes() for path in folder.iterdir()}
    again = CliRunner().invoke(app, ("identity", "create", str(folder)))
    assert again.exit_code == 1
    assert "never overwritten" in again.stderr and again.stderr.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/identity"):
        refused = CliRunner().invoke(app, ("identity", "create", str(tmp_path / place)))
        assert refused.exit_code == 1
        assert refused.stderr.startswith("allm: ") and refused.stderr.count("\n") == 1
