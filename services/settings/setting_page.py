"""The generator of docs/settings.md, from the variables that the code reads and setting_table.toml.

python -m services.settings.setting_page > docs/settings.md        (make gen)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby

from services.settings.setting_notes import Note, read_notes
from services.settings.setting_table import INTERNAL, PATH, PROCESSES, SERVICES, Row, read_table

HEAD = """# Settings

<!-- Generated: change services/settings/setting_table.toml, then run `make gen`. -->

All settings are environment variables. A process reads them once, when it starts (`services/settings/settings.py`). A
process with an invalid value does not start; the error names the variable and the allowed values. An empty value counts
as unset. Lists are separated by commas.

The column *read by* names processes: `services` are `catalog`, `authorizer`, `text`, `audio` and `image`; `gateway` is
the gateway that `allm serve` or `allm gateway` runs; `serve` is `allm serve` itself, and `allm` are the other commands.
`allm serve` passes its environment to all processes that it starts, so each variable is set only once.

allm also reads some variables of other programs: `HF_ENDPOINT` and `HF_TOKEN`
([models.md](models.md#source-and-format)), and `CUDA_VISIBLE_DEVICES`, which selects the visible GPUs.
"""
COLUMNS = "| variable | default | unit | allowed | read by | meaning |\n|---|---|---|---|---|---|"


def page() -> str:
    """Returns the page.

    Raises:
        ValueError: the table lacks a variable, or lists one that nothing reads; the message names it.
    """
    notes = {name: note for name, note in read_notes().items() if name not in INTERNAL}
    rows = read_table()
    names = {row.name for row in rows}
    if missing := sorted(notes.keys() - names):
        raise ValueError(f"{', '.join(missing)}: describe it in services/settings/{PATH.name}, then run `make gen`")
    if unread := sorted(names - notes.keys()):
        raise ValueError(f"{', '.join(unread)}: nothing reads it; remove it from services/settings/{PATH.name}")
    if unmeasured := [row.name for row in rows if notes[row.name].number and row.measure is None]:
        raise ValueError(f"{', '.join(unmeasured)}: add its `unit` in services/settings/{PATH.name}")
    parts = [HEAD]
    for group, members in groupby(rows, key=lambda row: row.group):
        parts.append(f"\n## {group}\n\n{COLUMNS}\n")
        parts += _lines(members, notes)
    return "".join(parts)


def _lines(rows: Iterable[Row], notes: dict[str, Note]) -> Iterable[str]:
    for row in rows:
        note = notes[row.name]
        unit = (row.measure or "") if note.number else ""
        default = row.default or (f"`{note.default}`" if note.default else "none")
        cells = (f"`{row.name}`", default, unit, row.allowed or note.allowed, _read_by(row), row.meaning)
        yield f"| {' | '.join(cells)} |\n"


def _read_by(row: Row) -> str:
    if set(row.read_by) == set(PROCESSES):
        return "all"
    others = [process for process in row.read_by if process not in SERVICES]
    return ", ".join([*others, "services"] if set(SERVICES) <= set(row.read_by) else row.read_by)


if __name__ == "__main__":
    try:
        sys.stdout.write(page())
    except ValueError as problem:
        sys.exit(str(problem))
