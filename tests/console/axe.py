"""Accessibility problems that axe-core finds in a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.console.chromium import Page

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RULES = {"resultTypes": ["violations"], "runOnly": {"type": "tag", "values": TAGS}}
GRAVE = ("critical", "serious", "moderate")


def problems(page: Page) -> list[str]:
    """Lists all problems except minor ones, by rule and element."""
    page.evaluate(f"{AXE.read_text()}; 1")
    found: list[dict[str, Any]] = page.evaluate(
        f"axe.run(document, {json.dumps(RULES)}).then((found) => found.violations)"
    )
    return [
        f"{each['impact']}: {each['id']}: {node['html'][:200]} {node.get('failureSummary', '')}"
        for each in found
        if each["impact"] in GRAVE
        for node in each["nodes"]
    ]
