"""axe-core finds nothing serious in any view, light or dark, empty or full, and the keyboard reaches everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.console.axe import problems
from tests.console.chromium import Opener, Page
from tests.speech import librivox
from tests.stack import MODEL, Stack

PHONE = {"width": 360, "height": 740}
VIEWS = {"chat": "Message", "audio": "Drop a recording", "image": "Prompt", "models": MODEL, "machine": "Memory of"}


def chatted(page: Page) -> None:
    """Fills the chat with a question, an answer with its request as code, and a refusal."""
    page.unfold("Settings")
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
    """Opens every panel in the view of models."""
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.click("button", "Why")
    page.wait("document.querySelector('.why')")


def plotted(page: Page) -> None:
    """Waits for the plots."""
    page.wait("document.querySelector('.plot canvas')")


def heard(page: Page) -> None:
    """Transcribes a file, and jumps to a word in it."""
    page.attach("input[type=file]", librivox()[0].path)
    page.wait("document.querySelector('.transcript[aria-busy=false] .word')")
    page.evaluate("document.querySelector('audio').currentTime = 2.5")
    page.wait("document.querySelector('.word.heard')")


def drawn(page: Page) -> None:
    """Draws an image, opens it for a mask, and enters an invalid number."""
    page.fill("input", "Steps", "2")
    page.fill("textarea", "Prompt", "a red circle on a blue background")
    page.click("button", "Generate")
    page.click(".gallery button", "Edit")
    page.wait("document.querySelector('.layers canvas')")
    page.fill("input", "Steps", "0")
    page.wait("document.querySelector('.problem:not(:empty)')")


FILLED: dict[str, Callable[[Page], None]] = {
    "chat": chatted,
    "audio": heard,
    "image": drawn,
    "models": opened,
    "machine": plotted,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VIEWS)
def test_accessibility(tab: Opener, stack: Stack, name: str) -> None:
    page = tab(stack, name)
    page.wait_text("Connected")
    page.wait(f"document.body.innerHTML.includes({VIEWS[name]!r})")
    assert problems(page) == [], "empty"
    FILLED[name](page)
    for scheme in ("light", "dark"):
        page.colours(scheme)
        assert problems(page) == [], scheme
    page.resize(**PHONE)
    assert problems(page) == [], "on a phone"


@pytest.mark.parametrize("name", VIEWS)
def test_it_fits_a_phone(tab: Opener, stack: Stack, name: str) -> None:
    page = tab(stack, name, **PHONE)
    page.wait_text(VIEWS[name] if name in ("models", "machine") else "Model")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_chat_is_used_by_keys_alone(tab: Opener, stack: Stack) -> None:
    page = tab(stack, "chat")
    page.wait_text(MODEL)
    page.press("Tab")
    page.wait("document.activeElement.textContent === 'Skip to content'")
    for _ in range(60):
        page.press("Tab")
        if page.evaluate("document.activeElement.id") == "message":
            break
    assert page.evaluate("document.activeElement.id") == "message"
    page.call("Input.insertText", text="What is the capital of France?")
    page.press("Enter")
    # Not its end: at the default temperature such a small model may never end.
    page.wait("document.querySelector('.answer .markdown')?.innerText")


def test_colours_can_be_chosen(tab: Opener, stack: Stack) -> None:
    page = tab(stack, "chat")
    page.colours("light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.click("button", "Theme: Auto")
    page.click("button", "Theme: Light")
    page.wait(f"{ground} !== {light!r}")
    page.click("button", "Theme: Dark")
    page.wait(f"{ground} === {light!r}")
