"""Links in the documentation: to files that exist, and to headings that they have. Code names existing pages."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

from tests.case import case

ROOT = Path(__file__).parents[1]
_CODE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PAGE = re.compile(r"(?<![\w/])docs/[a-z0-9-]+\.md\b")
_LISTS = ("tests/", "third_party/", "web/dist/")  # of other programs' pages, too


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines() if not name.startswith(_LISTS)]


@cache
def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.*)", _CODE.sub("", page.read_text()), re.MULTILINE)
    shown = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in shown}


def test_every_link_leads_somewhere() -> None:
    pages = tracked("*.md")
    assert pages
    for page in pages:
        for link in _LINK.findall(_CODE.sub("", page.read_text())):
            path, _, anchor = link.partition("#")
            if "://" in link:
                continue
            with case(page=page.name, link=link):
                target = (page.parent / path).resolve() if path else page
                assert target.exists()
                assert not anchor or target.suffix != ".md" or anchor in anchors(target)


def test_code_names_pages_that_exist() -> None:
    for file in tracked(
        "*.py", "*.md", "*.mjs", "*.go", "*.rb", "*.cc", "*.ts*", "*.proto", "*.yaml", "*.lua", "Makefile"
    ):
        for name in _PAGE.findall(file.read_text()):
            with case(file=file.name, name=name):
                assert (ROOT / name).exists()
