"""The folder of a run and its note (`run.json`)."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from services.cli.problem import Problem
from services.cli.serve.run_folder import RunNote, run_folder


def note(folder: Path) -> RunNote:
    metrics = {"text": "http://127.0.0.1:2/metrics"}
    return RunNote(1, "http://127.0.0.1:1/v1", "127.0.0.1:1", metrics, str(folder), {"text": 2}, ready=True)


def test_it_is_private_short_and_gone_afterwards(tmp_path: Path) -> None:
    home = tmp_path / ("deep" * 20)
    with run_folder(home) as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert len(str(folder / "text.sock").encode()) < 108
        (folder / "text.sock").touch()
        note(folder).write(home)
        assert json.loads((home / "run.json").read_text())["children"] == {"text": 2}
    assert not folder.exists()
    assert not (home / "run.json").exists()


def test_a_deep_temporary_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("deep" * 20)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with run_folder(tmp_path) as folder:
        assert folder.parent != deep
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_one_run_at_a_time_has_a_home(tmp_path: Path) -> None:
    with run_folder(tmp_path), pytest.raises(Problem, match=r"already serves.*ALLM_HOME"), run_folder(tmp_path):
        pass
    with run_folder(tmp_path):
        pass


def test_leftovers_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    with run_folder(tmp_path) as folder:
        note(folder).write(tmp_path)
        left = (tmp_path / "run.json").read_text()
    folder.mkdir(mode=0o700)
    (folder / "envoy.yaml").touch()
    (tmp_path / "run.json").write_text(left)
    with run_folder(tmp_path) as fresh:
        assert fresh != folder
        assert not folder.exists()


def test_a_note_cannot_have_other_folders_removed(tmp_path: Path) -> None:
    precious = tmp_path / "allm-precious"
    precious.mkdir()
    for folder in (precious, Path("/"), Path("allm-x")):
        note(folder).write(tmp_path)
        with run_folder(tmp_path):
            assert precious.exists()
    (tmp_path / "run.json").write_text("not json")
    with run_folder(tmp_path):
        pass


def test_the_home_of_an_older_release_is_made_private(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (home / "serve.lock").touch(mode=0o644)
    with run_folder(home):
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert stat.S_IMODE((home / "serve.lock").stat().st_mode) == 0o600
