"""The table of settings; no file names a variable that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.settings import setting_table
from services.settings.setting_notes import read_notes
from services.settings.setting_table import INTERNAL, read_table

ROOT = Path(__file__).parents[2]
# Documents, code, and deployment files. Tests and examples have their own variables.
PLACES = ("services", "gateway", "docs", "k8s", "containers", "monitoring", "protos", ".github")
FILES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile")
BINARY = {".pyc", ".png", ".gz", ".tgz", ".safetensors"}
VARIABLE = re.compile(r"\bALLM_[A-Z0-9]+(?:_[A-Z0-9]+)*\b(?!_)")  # not a prefix such as `ALLM_IMAGE_`
NO_SETTINGS = {"ALLM_KEY"}  # variables of a caller, in example commands


def texts() -> Iterator[tuple[str, str]]:
    """Yields the path and the text of every checked file."""
    paths = [ROOT / name for name in FILES]
    for place in PLACES:
        paths += [path for path in (ROOT / place).rglob("*") if "__pycache__" not in path.parts]
    for path in paths:
        if path.is_file() and path.suffix not in BINARY:
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def test_nobody_reads_documents_or_sets_a_variable_that_does_not_exist() -> None:
    known = read_notes().keys()
    unknown, seen = [], set()
    for name, text in texts():
        for number, line in enumerate(text.splitlines(), 1):
            found = set(VARIABLE.findall(line))
            seen |= found
            unknown += [f"{name}:{number}: {variable}" for variable in sorted(found - known - NO_SETTINGS)]
    assert not unknown, "\n".join(unknown)
    assert seen >= known - INTERNAL, "it has looked where they stand"


def test_entries_are_checked_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.toml"
    monkeypatch.setattr(setting_table, "PATH", path)
    for text, message in (
        ('[g.ALLM_X]\nread_by = ["text"]', "meaning"),
        ('[g.ALLM_X]\nmeaning = "m"', "ALLM_X: 'read_by'"),
        ('[g.ALLM_X]\nread_by = ["text"]\nmeaning = "m"\ncolour = "blue"', "colour"),
        ('[g.ALLM_X]\nread_by = ["tests"]\nmeaning = "m"', "ALLM_X: read_by may have serve, gateway,"),
        ("[g", "Expected"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_table()


def test_units_are_told_by_names_unless_said() -> None:
    rows = {row.name: row for row in read_table()}
    assert rows["ALLM_KV_TOKENS"].measure == "tokens"
    assert rows["ALLM_PORT"].measure == ""
    assert rows["ALLM_THREADS"].measure == "threads"
    assert rows["ALLM_DTYPE"].measure is None
