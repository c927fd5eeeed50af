"""Services whose packages are not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.serve import extras
from services.cli.serve.extras import NO_AUDIO, NO_IMAGE, check_traces, with_installed
from services.settings.setting_reader import SettingError
from services.settings.settings import load_settings

OPTIONAL = ("audio", "image")
SAID = {"audio": NO_AUDIO, "image": NO_IMAGE}


def test_what_is_installed_is_started_without_a_word(tmp_path: Path) -> None:
    said: list[str] = []
    settings = load_settings({"ALLM_HOME": str(tmp_path), "ALLM_AUDIO_REPLICAS": "2"})
    assert with_installed(settings, said.append) is settings
    assert said == []


@pytest.mark.parametrize("service", OPTIONAL)
def test_without_its_packages_there_is_no_such_service_and_how_to_get_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, service: str
) -> None:
    monkeypatch.setattr(extras, f"{service.upper()}_PACKAGES", ("numpy", "no_such_package"))
    said: list[str] = []
    settings = with_installed(load_settings({"ALLM_HOME": str(tmp_path)}), said.append)
    replicas = {"audio": settings.audio_replicas, "image": settings.image_replicas}
    assert replicas == {name: int(name != service) for name in OPTIONAL}
    assert said == [SAID[service]]
    assert f"pip install 'allm-server[{service}]'" in said[0]
    assert f"ALLM_{service.upper()}_REPLICAS=0" in said[0]


def test_who_wants_none_is_told_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for service in OPTIONAL:
        monkeypatch.setattr(extras, f"{service.upper()}_PACKAGES", ("no_such_package",))
    said: list[str] = []
    environ = {"ALLM_HOME": str(tmp_path), "ALLM_AUDIO_REPLICAS": "0", "ALLM_IMAGE_REPLICAS": "0"}
    settings = with_installed(load_settings(environ), said.append)
    assert (settings.audio_replicas, settings.image_replicas) == (0, 0)
    assert said == []


def test_traces_without_their_packages_stop_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environ = {"ALLM_HOME": str(tmp_path)}
    wanted = load_settings({**environ, "ALLM_OTLP_ENDPOINT": "http://collector"})
    check_traces(wanted)
    for missing in ("no_such_package", "no_such_package.part", "opentelemetry.no_such_part"):
        monkeypatch.setattr(extras, "TRACES_PACKAGES", (missing,))
        with pytest.raises(SettingError, match=r"ALLM_OTLP_ENDPOINT.*pip install 'allm-server\[traces\]'"):
            check_traces(wanted)
        check_traces(load_settings(environ))
