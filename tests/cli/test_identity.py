"""`allm identity create`: keys for a deployment of several containers."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from services.auth.identity_keys import ROLES, PublicKeyFile, read_key
from services.cli.main import app


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
