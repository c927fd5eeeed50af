"""`allm keys` against a real catalog that requires identities."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from allm.keys.v1 import keys_pb2
from typer.testing import CliRunner, Result

from services.auth.identity_keys import create_keys
from services.cli.keys import state_word
from services.cli.main import app
from services.cli.models.connection import catalog_address, read_note
from services.cli.problem import Problem
from services.cli.serve.run_folder import NOTE_NAME
from services.settings.settings import load_settings
from tests.identities import write_keys
from tests.stack import environment

START_SECONDS = 60.0


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Runs a catalog with ALLM_AUTH=keys; yields its home, which contains the socket `catalog.sock`."""
    with TemporaryDirectory(prefix="keys-") as name:
        folder = Path(name)
        write_keys(folder)
        settings = {"ALLM_LISTEN": f"unix:{name}/catalog.sock", "ALLM_AUTH": "keys", "ALLM_DRAIN_DELAY_SECONDS": "0"}
        process = subprocess.Popen(
            [sys.executable, "-m", "services.catalog"],
            env=environment(folder, **settings),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert process.stderr
        try:
            while b'"msg": "serving"' not in (line := process.stderr.readline()):
                assert line, "it ended before it served"
            # A running `allm serve` writes this note to its home.
            (folder / NOTE_NAME).write_text(json.dumps({"folder": name, "grpc": "127.0.0.1:1"}))
            yield folder
        finally:
            process.terminate()
            process.communicate(timeout=START_SECONDS)


@pytest.fixture
def allm(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    monkeypatch.setenv("ALLM_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "200")
    yield Command()


class Command:
    """The `allm` command, run in this process."""

    def __call__(self, *arguments: str, status: int = 0) -> Result:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == status, result.output
        return result


def test_a_key_is_shown_once(allm: Command) -> None:
    rates = ("--requests-per-minute", "60", "--tokens-per-minute", "90000", "--concurrent", "8")
    sizes = ("--bytes-in-flight", "1048576", "--stored-bytes", "2097152")
    made = allm("keys", "create", "ann", *rates, *sizes, "--expires", "1")
    (secret,) = re.findall(r"sk-allm-[A-Za-z0-9_-]{43}", made.stdout)
    assert "60 requests a minute, 90,000 tokens a minute, 8 requests at a time" in made.stdout
    assert "1.0 MiB of requests at a time, 2.0 MiB of stored responses" in made.stdout
    assert "not shown again" in made.stderr
    listed = allm("keys", "list").stdout
    assert re.search(r"key_[0-9a-f]{16}  ann +sk-allm-\S{4}\.\.\.  active  inference", listed)
    assert secret not in listed


def test_for_scripts(allm: Command) -> None:
    made = json.loads(
        allm("keys", "create", "bob", "--scope", "admin", "--model", "m", "--model", "l*", "--json").stdout
    )
    assert (made["key"]["scopes"], made["key"]["models"]) == (["admin"], ["m", "l*"])
    assert "expire_time" not in made["key"]
    listed = json.loads(allm("keys", "list", "--json").stdout)
    assert made["key"] in listed["keys"]
    revoked = json.loads(allm("keys", "revoke", made["key"]["id"], "--json").stdout)
    assert revoked["key"]["revoke_time"]
    assert "revoked" in allm("keys", "list").stdout
    assert "bob" in allm("keys", "revoke", made["key"]["id"]).stdout, "again, it is"


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("create", ""), "'name' must have"),
        (("create", "x", "--scope", "root"), "'scopes' may contain inference, admin, not 'root'"),
        (("create", "x", "--model", "a b"), "'models' must contain"),
        (("revoke", "key_0"), "There is no key with the id `key_0`."),
        (("list", "--catalog", "nowhere"), "--catalog nowhere is neither host:port nor unix:/path"),
        (("list", "--catalog", "unix:/nowhere/s"), "does not answer"),
    ],
)
def test_errors_are_explained_in_a_sentence(allm: Command, arguments: tuple[str, ...], reported: str) -> None:
    said = allm("keys", *arguments, status=1).stderr
    assert said.startswith("allm: ")
    assert reported in said
    assert said.count("\n") == 1


def test_command_without_the_operators_key_has_no_identity(
    allm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLM_IDENTITY_KEY_FILE", str(tmp_path / "none"))
    assert "x-allm-identity" in allm("keys", "list", status=1).stderr
    monkeypatch.setenv("ALLM_AUTH", "keys")
    assert "ALLM_IDENTITY_KEY_FILE" in allm("keys", "list", status=1).stderr
    create_keys({"operator": tmp_path / "none"}, tmp_path / "public.keys")
    assert "ALLM_IDENTITY_PUBLIC_KEYS_FILE does not list" in allm("keys", "list", status=1).stderr


def test_address_of_the_catalog(home: Path, tmp_path: Path) -> None:
    usual, note = load_settings({}), read_note(home)
    assert catalog_address("", usual, note) == f"unix:{home}/catalog.sock"
    elsewhere = load_settings({"ALLM_CATALOG": "catalog:50050"})
    assert catalog_address("", elsewhere, note) == "catalog:50050"
    assert catalog_address("other:1", elsewhere, note) == "other:1"
    assert catalog_address("", usual, read_note(tmp_path)) == "127.0.0.1:50050"
    for content in ("", "[]", "{}", '{"folder": 3}', '{"folder": "/nowhere"}'):
        (tmp_path / NOTE_NAME).write_text(content)
        assert catalog_address("", usual, read_note(tmp_path)) == "127.0.0.1:50050"
    with pytest.raises(Problem):
        catalog_address("other", usual, note)


def test_it_runs_where_only_the_catalog_is_installed() -> None:
    """The container of the catalog has no Envoy and no library of another service."""
    absent = ("envoy", "jinja2", "llama_cpp", "llguidance", "numpy", "torch", "av", "PIL", "gguf", "redis")
    program = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); import services.cli.main"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_states() -> None:
    key = keys_pb2.ApiKey(id="key_1")
    assert state_word(key, 100.0) == "active"
    key.expire_time.seconds = 100
    assert (state_word(key, 99.9), state_word(key, 100.0)) == ("active", "expired")
    key.revoke_time.seconds = 1
    assert state_word(key, 0.0) == "revoked"
