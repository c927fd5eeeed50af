"""`allm models import`: the models in a folder, on real files."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest

from services.cli.models.import_folder import model_name
from tests.cli.models.catalog_stand_in import Commands, Refusal, allm_models, desired


def gguf(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF")


def safetensors(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    (folder / "model.safetensors").write_bytes(b"\0" * 8)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Creates a folder as an older system left it."""
    folder = tmp_path / "old models"
    gguf(folder / "tiny.Q4_K_M.gguf")
    safetensors(folder / "smol_lm (v2)")
    # The metadata is wrong: the files decide.
    (folder / "smol_lm (v2)" / "metadata.json").write_text(json.dumps({"id": "other", "format": "gguf"}))
    safetensors(folder / "org" / "name")
    gguf(folder / "other" / "small" / "m.gguf")
    gguf(folder / "two" / "a.gguf")
    gguf(folder / "two" / "b.gguf")
    for number in (1, 2):
        gguf(folder / f"big-0000{number}-of-00002.gguf")
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / ".hidden").mkdir()
    return folder


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_one_line_for_each_model_and_a_summary(models: Commands, old: Path) -> None:
    before = listing(old)
    done = models("import", str(old))
    assert done.status == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "taken tiny.Q4_K_M (gguf)" in lines
    assert "taken smol_lm-v2 (safetensors)" in lines
    assert "taken org/name (safetensors)" in lines
    assert "taken other/small (gguf)" in lines
    assert "taken big (gguf)" in lines
    (ambiguous,) = [line for line in lines if line.startswith(f"refused {old / 'two'}")]
    assert "ambiguous" in ambiguous
    assert "a.gguf" in ambiguous
    assert f"skipped {old / 'empty'}: no model of a known format in it" in lines
    assert lines[-1] == "5 taken, 1 refused, 2 skipped"
    assert not any(".hidden" in line for line in lines)
    registered = {request.id: request for request in models.catalog.requests("RegisterModel")}
    assert set(registered) == {"tiny.Q4_K_M", "smol_lm-v2", "org/name", "other/small", "big"}
    assert registered["big"].source == (old / "big-00001-of-00002.gguf").as_uri()
    assert registered["other/small"].source == (old / "other" / "small" / "m.gguf").as_uri()
    assert registered["smol_lm-v2"].format == "safetensors"
    assert registered["smol_lm-v2"].source == (old / "smol_lm (v2)").as_uri()
    assert listing(old) == before


def test_dry_run_calls_no_service(tmp_path: Path, old: Path) -> None:
    done = allm_models(tmp_path, "import", str(old), "--dry-run", "--json", "--address", "127.0.0.1:1")
    assert done.status == 0
    found = {model["id"]: model for model in done.json["models"]}
    assert found["tiny.Q4_K_M"]["outcome"] == "would_take"
    assert found["two"]["outcome"] == "refused"
    assert found["empty"]["outcome"] == "skipped"
    assert found["org/name"]["path"] == str(old / "org" / "name")


def test_refusals_of_the_catalog_have_a_reason_and_a_hint(models: Commands, tmp_path: Path) -> None:
    gguf(tmp_path / "old" / "m.gguf")
    reason = "/x/m.gguf is not below one of ALLM_MODEL_ROOTS (/y)"
    models.catalog.refuse["RegisterModel"] = Refusal(grpc.StatusCode.INVALID_ARGUMENT, reason)
    done = models("import", str(tmp_path / "old"))
    assert done.status == 1
    assert done.stdout == f"refused m (gguf): {reason}\n1 refused\n"
    assert f"ALLM_MODEL_ROOTS={tmp_path / 'old'}" in done.stderr


def test_registered_models_do_not_stop_the_import(models: Commands, tmp_path: Path) -> None:
    for name in ("a", "b"):
        gguf(tmp_path / "old" / f"{name}.gguf")
    models.catalog.models["a"] = desired("a")
    done = models("import", str(tmp_path / "old"))
    assert done.status == 0
    assert done.stdout == "refused a (gguf): the id 'a' is taken\ntaken b (gguf)\n1 taken, 1 refused\n"


def test_no_folder_at_all(models: Commands, tmp_path: Path) -> None:
    done = models("import", str(tmp_path / "nowhere"))
    assert (done.status, done.stdout) == (1, "")
    assert str(tmp_path / "nowhere") in done.stderr


def test_an_empty_folder_is_nothing_wrong(models: Commands, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    done = models("import", str(tmp_path / "old"))
    assert (done.status, done.stdout) == (0, "the folder is empty\n")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tiny.gguf", "tiny"),
        ("Tiny Model.GGUF", "Tiny-Model"),
        ("big-00001-of-00003.gguf", "big"),
        ("org/name", "org/name"),
        ("_-x", "x"),
        ("größe", "gr-e"),
        ("(((", "model"),
        ("x" * 200, "x" * 128),
    ],
)
def test_names_become_valid_ids(name: str, expected: str) -> None:
    assert model_name(name) == expected
