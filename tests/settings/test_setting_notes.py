"""The noted default and bounds of a variable match its reader."""

from __future__ import annotations

from pathlib import Path

from services.settings.setting_notes import Note, NotingReader, read_notes
from services.settings.setting_reader import SettingReader
from services.settings.settings import load_settings, read_settings


def noted() -> dict[str, Note]:
    read = NotingReader({})
    read.integer("A_BYTES", 2048, 0, 1024**3)
    read.seconds("SECONDS", 30.0, 0.1, 86_400.0)
    read.number("SHARE", 0.5, 0.0, 1.0)
    read.switch("SWITCH", True)
    read.choice("CHOICE", "a", ("a", "b"))
    read.names("NAMES")
    read.pairs("PAIRS", "id=/path")
    read.path("PATH_", Path.home() / "x")
    read.path("BELOW", Path.home() / ".allm" / "y")
    read.path("ELSEWHERE", Path("/z"))
    read.text("CHOICE", "later")
    return read.notes


def test_defaults_and_bounds_as_people_write_them() -> None:
    notes = noted()
    assert [(note.name, note.default, note.allowed, note.number) for note in notes.values()] == [
        ("A_BYTES", "2048", "0 to 1 GiB", True),
        ("SECONDS", "30", "0.1 to 86,400", True),
        ("SHARE", "0.5", "0 to 1", True),
        ("SWITCH", "on", "`on`, `off`", False),
        ("CHOICE", "a", "`a`, `b`", False),
        ("NAMES", "", "list", False),
        ("PAIRS", "", "list of `id=/path`", False),
        ("PATH_", "~/x", "path", False),
        ("BELOW", "$ALLM_HOME/y", "path", False),
        ("ELSEWHERE", "/z", "path", False),
    ]


def test_noting_changes_nothing_of_what_is_read() -> None:
    environ = {"ALLM_HOME": "/srv", "ALLM_REPLICA": "r", "ALLM_PORT": "1", "ALLM_PREFIX_CACHE": "off"}
    assert read_settings(NotingReader(environ)) == read_settings(SettingReader(environ)) == load_settings(environ)


def test_whoever_sets_a_noted_default_gets_what_the_default_is() -> None:
    plain = load_settings({})
    compared = 0
    for note in read_notes().values():
        if note.default and "$" not in note.default and note.name != "ALLM_REPLICA":
            assert load_settings({note.name: note.default}) == plain, f"{note.name} is noted as {note.default}"
            compared += 1
    assert compared > 50
