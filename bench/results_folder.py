"""The folder of results: a table under its name, and the raw figures next to it under name and date."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bench.run import RESULTS_DIR, machine


def save(name: str, text: str, content: dict[str, Any], folder: Path = RESULTS_DIR) -> None:
    """Writes `text` as Markdown, and `content` as JSON after the date and the machine."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    now = datetime.now(UTC)
    document = {"date": now.isoformat(timespec="seconds"), "machine": machine(), **content}
    raw = msgspec.json.format(msgspec.json.encode(document), indent=1)
    (folder / f"{name}-{now:%Y-%m-%d}.json").write_bytes(raw + b"\n")
