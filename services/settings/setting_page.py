"""The generator of docs/settings.md from the declarations of the settings.

python -m services.settings.setting_page > docs/settings.md        (make gen)
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from services.settings.setting import INTERNAL, Setting, declared
from services.settings.settings import Settings

SECTIONS = (
    "The gateway",
    "Who may call",
    "Folders and models",
    "Processes and addresses",
    "Starting, stopping, watching",
    "Text models",
    "Audio models",
    "Image models",
    "Memory",
)
HEAD = """# Settings

<!-- Generated: change the declarations in services/settings, then run `make gen`. -->

All settings are environment variables. A process reads them once, when it starts (`services/settings/settings.py`). A
process with an invalid value does not start; the error names the variable and the allowed values. An empty value counts
as unset. Lists are separated by commas.

The column *read by* names processes: `services` are `catalog`, `authorizer`, `text`, `audio` and `image`; `gateway` is
the gateway that `allm serve` or `allm gateway` runs; `serve` is `allm serve` itself, and `allm` are the other commands.
`allm serve` passes its environment to all processes that it starts, so each variable is set only once.

allm also reads some variables of other programs: `HF_ENDPOINT` and `HF_TOKEN`
([models.md](models.md#source-and-format)), `CUDA_VISIBLE_DEVICES` and `GGML_VK_VISIBLE_DEVICES`, which select
the visible GPUs of CUDA and of llama.cpp on Vulkan.
"""
COLUMNS = "| variable | default | unit | allowed | read by | meaning |\n|---|---|---|---|---|---|"


class Row(NamedTuple):
    """A row of the page."""

    section: str
    setting: Setting
    meaning: str


def read_rows(kind: type[Any] = Settings) -> Iterator[Row]:
    """Yields the rows of a dataclass and of the dataclasses in its fields, in order of declaration.

    Raises:
        ValueError: a setting has no sentence; the message names it.
    """
    meanings: dict[type[Any], dict[str, str]] = {}  # by class
    for owner, name, setting in declared(kind):
        if owner not in meanings:
            meanings[owner] = _meanings(owner)
        if name not in meanings[owner]:
            raise ValueError(f"{setting.name}: describe it in a string below {owner.__name__}.{name}")
        yield Row(setting.section or owner.SECTION, setting, meanings[owner][name])


def _meanings(owner: type[Any]) -> dict[str, str]:
    """Returns the sentences of a dataclass and of its bases, by field."""
    return {name: text for each in reversed(owner.__mro__[:-1]) for name, text in _sentences(each)}


def page() -> str:
    """Returns the page.

    Raises:
        ValueError: a setting has no sentence, or its section is unknown; the message names it.
    """
    rows: dict[str, Row] = {}
    for row in read_rows():
        if row.section not in SECTIONS:
            raise ValueError(f"{row.setting.name}: setting_page.py has no section {row.section!r}")
        if row.setting.read_by != INTERNAL:
            rows.setdefault(row.setting.name, row)
    parts = [HEAD]
    for section in SECTIONS:
        parts.append(f"\n## {section}\n\n{COLUMNS}\n")
        parts += [_line(row) for row in rows.values() if row.section == section]
    return "".join(parts)


def _sentences(kind: type[Any]) -> Iterator[tuple[str, str]]:
    """Yields the fields of a class that have a string below them, with that string in one line."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    for field, below in pairwise(ast.iter_child_nodes(definition)):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield ast.unparse(field.target), " ".join(str(below.value.value).split())


def _line(row: Row) -> str:
    setting = row.setting
    default = ": ".join(filter(None, (setting.shown and f"`{setting.shown}`", setting.means)))
    cells = (f"`{setting.name}`", default or "none", setting.unit, setting.allowed, setting.read_by, row.meaning)
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    try:
        sys.stdout.write(page())
    except ValueError as problem:
        sys.exit(str(problem))
