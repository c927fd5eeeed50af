"""docs/settings.md: generated from the declarations and current; no file names a variable that does not exist."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from services.settings import setting, setting_page
from services.settings.setting_page import Row, page, read_rows
from services.settings.settings import REMOVED, load_settings

ROOT = Path(__file__).parents[2]
# Documents, code, and deployment files. Tests and examples have their own variables.
PLACES = ("services", "gateway", "docs", "k8s", "containers", "monitoring", "protos", ".github")
FILES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile")
BINARY = {".pyc", ".png", ".gz", ".tgz", ".safetensors"}
VARIABLE = re.compile(r"\bALLM_[A-Z0-9]+(?:_[A-Z0-9]+)*\b(?!_)")  # not a prefix such as `ALLM_IMAGE_`
INTERNAL = {"ALLM_LIFELINE_FD", "CUDA_VISIBLE_DEVICES"}


@dataclass(frozen=True)
class Undescribed:
    SECTION: ClassVar = "Memory"
    new: str = setting.text("ALLM_NEW", "", "text")


@dataclass(frozen=True)
class Misplaced:
    SECTION: ClassVar = "Nowhere"
    new: str = setting.text("ALLM_NEW", "", "text")
    """a new setting"""


def test_the_page_is_what_the_code_says() -> None:
    current = (ROOT / "docs/settings.md").read_text() == page()
    assert current, (
        "docs/settings.md is generated: change the declarations in services/settings, not the page, and run "
        "`make gen` (.venv/bin/python -m services.settings.setting_page > docs/settings.md)"
    )


def test_the_command_prints_it() -> None:
    command = [sys.executable, "-m", "services.settings.setting_page"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, page(), "")


def declared() -> dict[str, Row]:
    return {row.setting.name: row for row in read_rows()}


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
    assert found.keys() == declared().keys() - INTERNAL
    assert all(len(cells) == 5 for cells in found.values()), "a | inside of a cell breaks the table"
    assert all(default and allowed and read_by and meaning for default, _, allowed, read_by, meaning in found.values())
    assert found["ALLM_DRAIN_SECONDS"][:4] == ["`30`", "seconds", "0 to 3,600", "gateway, services"]
    assert found["ALLM_HOST_MEMORY_BYTES"][:2] == ["`0`: the whole memory, or the container's limit", "bytes"]
    assert found["ALLM_MODELS_FILE"][:4] == ["none", "", "path of a file", "catalog, serve"]
    assert found["ALLM_HOME"][3] == "all"


def test_one_declaration_per_variable() -> None:
    """Text, audio and image settings inherit some; a copied declaration could contradict the first."""
    settings = [row.setting for row in read_rows()]
    assert len({id(each) for each in settings}) == len({each.name for each in settings})


def test_read_by_names_processes() -> None:
    known = {"all", "serve", "gateway", "services", "authorizer", "catalog", "text", "audio", "image", "allm"}
    assert {word for *_, read_by, _ in rows().values() for word in read_by.split(", ")} == known


def test_setting_a_shown_default_changes_nothing() -> None:
    plain = load_settings({})
    compared = 0
    for name, row in declared().items():
        if row.setting.shown and "$" not in row.setting.shown:
            assert load_settings({name: row.setting.shown}) == plain, f"{name} is shown as {row.setting.shown}"
            compared += 1
    assert compared > 50


def test_a_setting_that_the_page_lacks_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^ALLM_NEW: describe it in a string below Undescribed\.new$"):
        list(read_rows(Undescribed))
    misplaced = list(read_rows(Misplaced))
    assert misplaced[0].meaning == "a new setting"
    monkeypatch.setattr(setting_page, "read_rows", lambda: misplaced)
    with pytest.raises(ValueError, match=r"^ALLM_NEW: setting_page\.py has no section 'Nowhere'$"):
        page()


def texts() -> Iterator[tuple[str, str]]:
    """Yields the path and the text of every checked file."""
    paths = [ROOT / name for name in FILES]
    for place in PLACES:
        paths += [path for path in (ROOT / place).rglob("*") if "__pycache__" not in path.parts]
    for path in paths:
        if path.is_file() and path.suffix not in BINARY:
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def test_documents_and_code_name_only_existing_variables() -> None:
    known = declared().keys()
    unknown, seen = [], set()
    for name, text in texts():
        for number, line in enumerate(text.splitlines(), 1):
            found = set(VARIABLE.findall(line))
            seen |= found
            unknown += [f"{name}:{number}: {variable}" for variable in sorted(found - known - REMOVED.keys())]
    assert not unknown, "\n".join(unknown)
    assert seen >= known - INTERNAL, "it has looked where they stand"
