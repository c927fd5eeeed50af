"""docs/settings.md: generated from the code and current; the failure for a missing setting names the fix."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from services.settings import setting_page, setting_table
from services.settings.setting_notes import Note, read_notes
from services.settings.setting_page import page

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_code_says() -> None:
    current = (ROOT / "docs/settings.md").read_text() == page()
    assert current, (
        "docs/settings.md is generated: describe a variable in services/settings/setting_table.toml, not in the "
        "page, and run `make gen` (.venv/bin/python -m services.settings.setting_page > docs/settings.md)"
    )


def test_the_command_prints_it() -> None:
    command = [sys.executable, "-m", "services.settings.setting_page"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, page(), "")


def rows() -> dict[str, list[str]]:
    """Returns the cells of each row of the page, by variable."""
    found = {}
    for line in page().splitlines():
        if line.startswith("| `"):
            name, *cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            found[name.strip("`")] = cells
    return found


def test_every_variable_has_a_row_with_all_that_is_promised() -> None:
    found = rows()
    assert found.keys() == read_notes().keys() - setting_table.INTERNAL
    assert all(len(cells) == 5 for cells in found.values()), "a | inside of a cell breaks the table"
    assert all(default and allowed and read_by and meaning for default, _, allowed, read_by, meaning in found.values())
    assert found["ALLM_DRAIN_SECONDS"][:4] == ["`30`", "seconds", "0 to 3,600", "gateway, services"]
    assert found["ALLM_HOST_MEMORY_BYTES"][:2] == ["`0`: the whole memory, or the container's limit", "bytes"]
    assert found["ALLM_MODELS_FILE"][:4] == ["none", "", "path of a file", "catalog, serve"]
    assert found["ALLM_HOME"][3] == "all"


def test_a_default_in_words_begins_with_what_the_code_has() -> None:
    notes, compared = read_notes(), 0
    for name, (default, *_) in rows().items():
        literal = default.removeprefix("`").partition("`")[0]
        if notes[name].number:
            assert literal == notes[name].default, name
            compared += 1
    assert compared > 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda notes: notes | {"ALLM_NEW": Note("ALLM_NEW", "1", "text", False)},
            "ALLM_NEW: describe it in services/settings/setting_table.toml, then run `make gen`",
        ),
        (
            lambda notes: {name: note for name, note in notes.items() if name != "ALLM_PORT"},
            "ALLM_PORT: nothing reads it; remove it from services/settings/setting_table.toml",
        ),
        (
            lambda notes: notes | {"ALLM_DTYPE": Note("ALLM_DTYPE", "1", "1 to 2", True)},
            "ALLM_DTYPE: add its `unit` in services/settings/setting_table.toml",
        ),
    ],
)
def test_who_adds_or_takes_away_a_setting_is_told_what_to_do(
    change: Callable[[dict[str, Note]], dict[str, Note]], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = change(read_notes())
    monkeypatch.setattr(setting_page, "read_notes", lambda: notes)
    with pytest.raises(ValueError, match="ALLM_") as caught:
        page()
    assert str(caught.value) == message
