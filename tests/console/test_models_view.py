"""Models and the machine in a real browser: an operator's actions, and their display."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.console.axe import problems
from tests.console.chromium import Opener, Page
from tests.demo_model import demo_model
from tests.loopback_hub import LISTING, LoopbackHub
from tests.stack import MODEL, Stack, environment, running_stack

Open = Callable[[str], Page]
NEW = "browser-made"
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


def card(model: str, state: str) -> str:
    return f"document.querySelector('[data-model={json.dumps(model)}][data-state={json.dumps(state)}]')"


def act(page: Page, what: str, model: str) -> None:
    page.click(f"[data-model={json.dumps(model)}] button", f"{what} {model}")


def register(page: Page, source: str, name: str) -> None:
    page.wait("document.querySelector('details.manual')")
    page.evaluate("document.querySelector('details.manual').open = true")
    page.fill("input", "Source", source)
    page.fill(".manual input", "Name", name)
    page.click("button", "Register")


def test_a_model_is_registered_loaded_unloaded_and_removed(tab: Opener, roomy: Stack) -> None:
    page = tab(roomy, "models")
    page.wait(card(MODEL, "ready"))
    register(page, str(demo_model()), NEW)
    page.wait(card(NEW, "ready"))
    act(page, "Load", NEW)
    page.wait(card(NEW, "loaded"))
    page.wait(f"{card(NEW, 'loaded')}.innerText.includes('kept loaded')")
    page.wait(f"/uses [\\d.]+ [MG]iB/.test({card(NEW, 'loaded')}.innerText)")
    offered = f"{card(NEW, 'loaded')}.querySelector('.actions').innerText"
    assert "Load " not in page.evaluate(offered), "loading it again would do nothing"
    act(page, "Unload", NEW)
    page.wait(card(NEW, "ready"))
    act(page, "Delete", NEW)
    page.wait_text("Delete this model and its downloaded files?")
    page.click(f"[data-model='{NEW}'] button.danger")
    page.wait(f"!document.querySelector('[data-model={NEW}]')")
    assert page.complaints() == []


def test_a_download_from_the_hub_is_followed(tab: Opener, roomy: Stack, hub: LoopbackHub, tmp_path: Path) -> None:
    shutil.copy(demo_model(), tmp_path / "demo.gguf")
    hub.add("org/good", tmp_path)
    gate = hub.gate("demo.gguf", after_bytes=32 * 1024 * 1024)  # the download is held there
    page = tab(roomy, "models")
    register(page, "org/good#demo.gguf", "from-hub")
    page.wait(card("from-hub", "downloading"))
    page.wait(f"{card('from-hub', 'downloading')}.querySelector('progress')?.value > 0")
    assert "Downloaded" in page.evaluate(f"{card('from-hub', 'downloading')}.innerText")
    gate.open()
    page.wait(card("from-hub", "ready"))


def test_a_model_is_found_on_the_hub_and_added_by_keys(
    tab: Opener, roomy: Stack, hub: LoopbackHub, tmp_path: Path
) -> None:
    shutil.copy(demo_model(), tmp_path / "demo-Q8_0.gguf")
    about = {"tags": ["gguf", "license:mit"], "gguf": {"architecture": "llama"}, "downloads": 1234}
    hub.add("org/found-GGUF", tmp_path, **about)
    hub.add("org/found-clip-GGUF", tmp_path, **(about | {"gguf": {"architecture": "clip"}, "downloads": 1}))
    gate = hub.gate("demo-Q8_0.gguf", after_bytes=32 * 1024 * 1024)
    page = tab(roomy, "models", **WIDE)
    page.wait(card(MODEL, "ready") + " || " + card(MODEL, "loaded"))
    page.tab_to("summary", "Find a model on the Hugging Face Hub")
    page.press("Enter")
    page.tab_to(".hub input", "Name")
    page.call("Input.insertText", text="found")
    page.press("Enter")
    page.wait_text("2 repositories found")
    first, other = page.evaluate("[...document.querySelectorAll('.result')].map((each) => each.innerText)")
    assert "org/found-GGUF" in first
    assert "Fits" in first
    assert "licence: mit" in first
    assert "1,234 downloads a month" in first
    assert "Not supported" in other
    assert "Architecture 'clip' is not supported" in other
    assert page.evaluate("document.querySelectorAll('.result button').length") == 1, "it cannot run the other"
    page.reload()
    page.wait_text("2 repositories found")
    for scheme in ("light", "dark"):
        page.colours(scheme)
        for size in (WIDE, NARROW):
            page.resize(**size)
            assert problems(page) == [], (scheme, size)
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    page.tab_to("button", "Add found-q8_0")
    page.press("Enter")
    page.wait("document.querySelector('.result progress')?.value > 0")
    page.wait(card("found-q8_0", "downloading"))
    gate.open()
    page.wait("document.querySelector('.result .badge.ready + .hint')?.innerText === 'Added as found-q8_0'")
    act(page, "Delete", "found-q8_0")
    page.click("[data-model='found-q8_0'] button.danger")
    page.wait_text("Add")
    hub.status(LISTING, 503, times=2)
    page.click("button", "Search")
    page.wait("document.querySelector('.hub .note.bad')?.innerText.includes('answers 503')")


def test_cards_do_not_stretch_each_other(tab: Opener, roomy: Stack) -> None:
    page = tab(roomy, "models", **WIDE)
    page.wait(card(MODEL, "ready") + " || " + card(MODEL, "loaded"))
    register(page, str(demo_model()), "neighbour")
    page.wait(card("neighbour", "ready"))
    height = "document.querySelector('[data-model=neighbour]').getBoundingClientRect().height"
    before = page.evaluate(height)
    act(page, "Why", MODEL)
    page.wait("document.querySelector('.why')")
    assert page.evaluate(height) == before
    act(page, "Delete", "neighbour")
    page.click("[data-model=neighbour] button.danger")
    page.wait("!document.querySelector('[data-model=neighbour]')")


def test_another_client_is_seen_at_once(tab: Opener, roomy: Stack) -> None:
    """One watch, no polling: a change by the command line appears in the page by itself."""
    page = tab(roomy, "models")
    page.wait(card(MODEL, "ready"))
    watched = len(page.requested())
    command = [
        sys.executable,
        "-m",
        "services.cli",
        "models",
        "add",
        "by-command",
        str(demo_model()),
        "--format",
        "gguf",
    ]
    subprocess.run(command, env=environment(roomy.home), check=True, capture_output=True, timeout=60)
    page.wait(card("by-command", "ready"))
    later = page.requested()[watched:]
    assert [url for url in later if not url.endswith(("/WatchModels", "/WatchMachine"))] == []


def test_eviction_is_shown(tab: Opener, roomy: Stack) -> None:
    page = tab(roomy, "models")
    register(page, str(demo_model()), "second")
    page.wait(card("second", "ready"))
    ask(roomy, "second")
    page.wait(card("second", "loaded"))
    ask(roomy, MODEL)  # only one may be in memory
    page.wait(card(MODEL, "loaded"))
    page.evaluate("location.hash = '#/machine'")
    page.wait_text("second was evicted")


def ask(stack: Stack, model: str) -> None:
    """Generates one token with a model."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    request = urllib.request.Request(
        f"{stack.base_url}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.status == 200


def test_why_is_answered(view: Open) -> None:
    page = view("models")
    act(page, "Why", MODEL)
    page.wait("document.querySelector('.why')")
    answer = page.evaluate("document.querySelector('.why').innerText")
    assert "llama_cpp is selected" in answer
    assert "torch" in answer
    assert "whisper" not in answer, "a runtime of another modality"


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        ("/nowhere/model.gguf", "lost", "ALLM_MODEL_ROOTS"),
        (str(demo_model()), MODEL, "already"),
        (str(demo_model()), "no good name", "is not allowed"),
    ],
)
def test_invalid_registration_is_refused_in_a_sentence(
    tab: Opener, roomy: Stack, source: str, name: str, said: str
) -> None:
    page = tab(roomy, "models")
    register(page, source, name)
    page.wait("document.querySelector('.register [aria-invalid] ~ .problem')")  # at its field
    sentence = page.evaluate("document.querySelector('.register [aria-invalid] ~ .problem').innerText")
    assert said in sentence
    assert sentence.endswith(".")


def test_the_machine_is_plotted(view: Open, stack: Stack) -> None:
    page = view("machine")
    page.wait_text("Memory of ")
    page.wait("document.querySelectorAll('.plot canvas').length >= 2")
    described = page.evaluate("document.querySelector('.plot [role=img]').getAttribute('aria-label')")
    assert "Host: " in described
    ask(stack, MODEL)
    # Of all callers, not only of this tab: the services' own counters.
    page.wait("document.querySelector('.machine').innerText.includes('Text: request duration')")
    page.wait("/Text\\s+0\\s+0\\s/.test(document.querySelector('.tables').innerText)")


@pytest.fixture(scope="module")
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub() as running:
        yield running


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory, hub: LoopbackHub) -> Iterator[Stack]:
    """A stack with writable models, which may read the demo model's folder and keeps one model in memory."""
    roots = {"ALLM_MODEL_ROOTS": str(demo_model().parent), "HF_ENDPOINT": hub.endpoint}
    settings = roots | {"ALLM_MAX_LOADED_MODELS": "1"}
    with running_stack(tmp_path_factory.mktemp("console") / "home", **settings) as stack:
        yield stack
