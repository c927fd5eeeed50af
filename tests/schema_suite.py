"""The official JSON-Schema-Test-Suite, which `make` fetches: its schemas, with instances that are valid and invalid."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUITE = Path(__file__).parents[1] / ".venv/schema-suite/tests/draft2020-12"


@dataclass(frozen=True)
class Case:
    """A schema of the suite, with instances and their expected results."""

    name: str
    schema: dict[str, Any]
    valid: tuple[Any, ...]
    invalid: tuple[Any, ...]


def schema_cases() -> list[Case]:
    """Returns all cases of the draft, optional parts included, except schemas that are only true or false."""
    assert SUITE.is_dir(), f"{SUITE} is missing: run make test, or make .venv/schema-suite/.fetched"
    found = []
    for path in sorted(SUITE.rglob("*.json")):
        for group in json.loads(path.read_text()):
            if isinstance(group["schema"], dict):
                valid, invalid = (
                    tuple(test["data"] for test in group["tests"] if test["valid"] is truth) for truth in (True, False)
                )
                name = f"{path.relative_to(SUITE).with_suffix('')}: {group['description']}"
                found.append(Case(name, group["schema"], valid, invalid))
    return found
