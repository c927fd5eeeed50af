"""axe-core finds nothing serious in any view, light or dark, empty or full, and everything can be reached by keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chromium import Page
from conftest import Opener
from stack import MODEL, Stack

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RULES = {"resultTypes": ["violations"], "runOnly": {"type": "tag", "values": TAGS}}
PHONE = {"width": 360, "height": 740}
VIEWS = {"chat": "Message", "audio": "Drop a recording", "image": "Prompt", "models": MODEL}


def problems(page: Page) -> list[str]:
    """What axe says that somebody could not use, by rule and element."""
    page.evaluate(f"{AXE.read_text()}; 1")
    found: list[dict[str, Any]] = page.evaluate(
        f"axe.run(document, {json.dumps(RULES)}).then((found) => found.violations)"
    )
    return [
        f"{each['impact']}: {each['id']}: {node['html'][:200]} {node.get('failureSummary', '')}"
        for each in found
        if each["impact"] in ("serious", "critical", "moderate")
        for node in each["nodes"]
    ]


def chatted(page: Page) -> None:
    """Fills the chat with a question, an answer with its request as code, and a refusal."""
    page.fill("input", "Temperature", "0")
    page.fill("textarea", "Message", "What is the capital of France?")
    page.press("Enter")
    page.wait("document.querySelector('.answer .below')")
    page.choose("select", "Copy as", "Python")
    page.wait("document.querySelector('.answer .codeblock')")
    page.fill("textarea", "JSON schema of the answer", '{"uniqueItems": true}')
    page.fill("textarea", "Message", "And as JSON?")
    page.press("Enter")
    page.wait("document.querySelector('.note.bad')")


def opened(page: Page) -> None:
    """Opens everything that can be opened in the view of models."""
    page.wait("document.querySelector('.plot canvas')")
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.click("button", "Why")
    page.wait("document.querySelector('.why')")


def nothing(page: Page) -> None:
    """Leaves a view as it is when it is opened."""


FILLED: dict[str, Callable[[Page], None]] = {"chat": chatted, "audio": nothing, "image": nothing, "models": opened}


@pytest.mark.parametrize("name", VIEWS)
def test_nobody_is_shut_out(tab: Opener, stack: Stack, name: str) -> None:
    page = tab(stack, name)
    page.wait_text("Connected")
    page.wait(f"document.body.innerHTML.includes({VIEWS[name]!r})")
    FILLED[name](page)
    for scheme in ("light", "dark"):
        page.colours(scheme)
        assert problems(page) == [], scheme
    page.resize(**PHONE)
    assert problems(page) == [], "on a phone"


@pytest.mark.parametrize("name", VIEWS)
def test_it_fits_a_phone(tab: Opener, stack: Stack, name: str) -> None:
    page = tab(stack, name, **PHONE)
    page.wait_text(VIEWS["models"] if name == "models" else "Model")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_chat_is_used_by_keys_alone(tab: Opener, stack: Stack) -> None:
    page = tab(stack, "chat")
    page.wait_text(MODEL)
    page.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    for _ in range(60):
        page.press("Tab")
        if page.evaluate("document.activeElement.id") == "message":
            break
    assert page.evaluate("document.activeElement.id") == "message"
    page.call("Input.insertText", text="What is the capital of France?")
    page.press("Enter")
    page.wait("document.querySelector('.answer .below')")


def test_colours_can_be_chosen(tab: Opener, stack: Stack) -> None:
    page = tab(stack, "chat")
    page.colours("light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.click("button", "Colours: Auto")
    page.click("button", "Colours: Light")
    assert page.evaluate(ground) != light
    page.click("button", "Colours: Dark")
    assert page.evaluate(ground) == light
