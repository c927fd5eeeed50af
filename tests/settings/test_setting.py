"""The kinds of settings: their defaults and allowed values as people write them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from services.settings import setting
from services.settings.setting import read


@dataclass(frozen=True)
class Sample:
    size: int = setting.integer("A_BYTES", 2048, 0, 1024**3, "bytes", "text")
    wait: float = setting.seconds("SECONDS", 30.0, 0.1, 86_400.0, "text")
    share: float = setting.number("SHARE", 0.5, 0.0, 1.0, "share", "text")
    switch: bool = setting.switch("SWITCH", True, "text")
    artifacts: bool = setting.switch("ARTIFACTS", True, "text", on="auto")
    choice: str = setting.choice("CHOICE", "a", ("a", "b"), "text")
    names: tuple[str, ...] = setting.names("NAMES", "text")
    publishers: tuple[str, ...] = setting.names("PUBLISHERS", "text", ("a/*", "b/*"))
    pairs: tuple[tuple[str, str], ...] = setting.pairs("PAIRS", "id=/path", str, "text")
    path: Path = setting.path("PATH_", "~/x", "text")
    below: Path = setting.path("BELOW", "$ALLM_HOME/y", "text")
    elsewhere: Path = setting.path("ELSEWHERE", "/z", "text", allowed="path of a file")
    secret: str = setting.text("SECRET", "", "text", True)
    derived: Path = Path("$ALLM_HOME/cache")


def test_defaults_and_bounds_as_people_write_them() -> None:
    found = [each.metadata[setting.SETTING] for each in fields(Sample) if each.metadata]
    assert [(each.name, each.shown, each.allowed, each.unit) for each in found] == [
        ("A_BYTES", "2048", "0 to 1 GiB", "bytes"),
        ("SECONDS", "30", "0.1 to 86,400", "seconds"),
        ("SHARE", "0.5", "0 to 1", "share"),
        ("SWITCH", "on", "`on`, `off`", ""),
        ("ARTIFACTS", "auto", "`auto`, `off`", ""),
        ("CHOICE", "a", "`a`, `b`", ""),
        ("NAMES", "", "list", ""),
        ("PUBLISHERS", "a/*,b/*", "list", ""),
        ("PAIRS", "", "list of `id=/path`", ""),
        ("PATH_", "~/x", "path", ""),
        ("BELOW", "$ALLM_HOME/y", "path", ""),
        ("ELSEWHERE", "/z", "path of a file", ""),
        ("SECRET", "", "text", ""),
    ]


def test_folders_are_below_home_unless_they_are_set() -> None:
    assert read(Sample, {}).below == Path.home() / ".allm" / "y"
    found = read(Sample, {"ALLM_HOME": "/srv", "PATH_": "~/z"})
    assert (found.path, found.below, found.derived) == (Path.home() / "z", Path("/srv/y"), Path("/srv/cache"))


def test_a_secret_is_not_shown() -> None:
    assert "hidden-word" not in repr(read(Sample, {"SECRET": "hidden-word"}))
