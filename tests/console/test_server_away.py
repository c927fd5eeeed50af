"""A server that requires keys, and one that becomes unavailable: the page says so, and recovers by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from tests.console.axe import problems
from tests.console.chromium import Opener, Page
from tests.stack import MODEL, Stack, environment

# Every state that the page has shown, also those that have disappeared when a test checks.
WATCH = """
window.shown = [];
new MutationObserver(() => {
  const state = document.querySelector('.link .word')?.innerText;
  if (state !== window.shown.at(-1)) window.shown.push(state);
  const banner = document.querySelector('.banner')?.innerText;
  if (banner) window.banner = banner;
}).observe(document.body, {subtree: true, childList: true, characterData: true}); 1
"""

# Visible parts of the page that need a key.
BEHIND = """
[...document.querySelectorAll("nav, aside, .split, .note")]
  .filter((each) => each.checkVisibility() && !each.closest("dialog")).map((each) => each.innerText)
"""


def new_key(stack: Stack, name: str, *scopes: str) -> str:
    """Creates a key as an operator does."""
    wanted = [part for scope in scopes for part in ("--scope", scope)]
    command = [sys.executable, "-m", "services.cli", "keys", "create", name, *wanted, "--json"]
    done = subprocess.run(command, env=environment(stack.home), capture_output=True, text=True, check=True, timeout=60)
    return str(json.loads(done.stdout)["secret"])


def give(page: Page, key: str) -> None:
    page.wait_text("This server requires an API key")
    page.fill("input", "API key", key)
    page.click("button", "Use this key")


def test_a_key_is_asked_for_and_kept_in_the_tab(tab: Opener, guarded: Stack) -> None:
    page = tab(guarded, "chat")
    page.wait_text("This server requires an API key")
    assert problems(page) == []
    assert page.evaluate(BEHIND) == []
    give(page, "sk-allm-" + "A" * 43)
    page.wait_text("Incorrect API key provided")
    assert page.evaluate(BEHIND) == []
    page.click("button", "Cancel")
    page.wait_text("the page shows nothing without one")
    assert page.evaluate(BEHIND) == []
    assert problems(page) == []
    page.click("button", "Enter API key")
    give(page, new_key(guarded, "operator", "admin", "inference"))
    page.wait_text("Connected")
    page.unfold("Settings")
    page.fill("input", "Temperature", "0")
    page.fill("textarea", "Message", "What is the capital of France?")
    page.press("Enter")
    page.wait("document.querySelector('.answer .below')")
    assert "Paris" in page.evaluate("document.querySelector('.answer').innerText")
    # The code of a request names the key's variable, and never contains the key.
    page.choose("select", "Copy as", "curl")
    page.wait_text("authorization: Bearer $ALLM_API_KEY")
    assert "sk-allm-" not in page.text()
    # The key survives a reload, but not the tab.
    page.reload()
    page.wait_text("Connected")
    assert "sk-allm-" not in page.evaluate("JSON.stringify(localStorage)")
    assert page.evaluate("document.cookie") == ""
    page.click("button", "Remove API key")
    page.wait_text("This server requires an API key")
    page.wait("sessionStorage.getItem('allm.key') === null")


def test_a_key_that_may_not_manage_still_chats(tab: Opener, guarded: Stack) -> None:
    page = tab(guarded, "models")
    give(page, new_key(guarded, "guest", "inference"))
    page.wait_text("This key can use models but not manage them")
    page.wait(f"document.querySelector('[data-model=\"{MODEL}\"]')")
    # The page explains why the machine is not shown, and sends no forbidden request.
    page.wait_text("A key with the scope admin shows live data")
    page.evaluate("location.hash = '#/machine'")
    page.wait_text("This key cannot see the machine")
    page.evaluate("location.hash = '#/models'")
    page.wait("document.querySelector('.cards')")
    assert [url for url in page.requested() if url.endswith("/WatchMachine")] == []
    assert (
        page.evaluate(
            "[...document.querySelectorAll('button')].filter((each) => each.innerText.startsWith('Load')).length"
        )
        == 0
    )


def test_it_says_that_the_server_is_away_and_comes_back(tab: Opener, guarded: Stack) -> None:
    page = tab(guarded, "chat")
    give(page, new_key(guarded, "patient", "admin", "inference"))
    page.wait_text("Connected")
    page.evaluate(WATCH)
    os.kill(guarded.note["children"]["gateway"], signal.SIGKILL)
    page.wait("window.shown.includes('Reconnecting') && window.shown.at(-1) === 'Connected'")
    assert "reconnects automatically" in page.evaluate("window.banner")
    # The page has recovered by itself: the next message is answered. At the default temperature it might never end.
    page.unfold("Settings")
    page.fill("input", "Temperature", "0")
    page.fill("textarea", "Message", "What is the capital of France?")
    page.press("Enter")
    page.wait("document.querySelector('.answer .figures')?.innerText.includes('tokens')")
