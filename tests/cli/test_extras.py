"""Services whose packages are not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli import extras
from services.cli.extras import NO_AUDIO, with_installed
from services.rpc.settings import load_settings


def test_what_is_installed_is_started_without_a_word(tmp_path: Path) -> None:
    said: list[str] = []
    settings = load_settings({"ALLM_HOME": str(tmp_path), "ALLM_AUDIO_REPLICAS": "2"})
    assert with_installed(settings, said.append) is settings
    assert said == []


def test_without_its_packages_there_is_no_audio_service_and_how_to_get_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(extras, "AUDIO_PACKAGES", ("numpy", "no_such_package"))
    said: list[str] = []
    assert with_installed(load_settings({"ALLM_HOME": str(tmp_path)}), said.append).audio_replicas == 0
    assert said == [NO_AUDIO]
    assert "pip install 'allm[audio]'" in NO_AUDIO


def test_who_wants_none_is_told_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(extras, "AUDIO_PACKAGES", ("no_such_package",))
    said: list[str] = []
    settings = load_settings({"ALLM_HOME": str(tmp_path), "ALLM_AUDIO_REPLICAS": "0"})
    assert with_installed(settings, said.append).audio_replicas == 0
    assert said == []
