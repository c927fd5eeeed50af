"""Takes the screenshots of docs/console.md: `.venv/bin/python -m tests.console.screenshots [VIEW...]`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from allm.text.v1 import chat_service_pb2

from tests.console.chromium import Browser, Page, running_chromium
from tests.console.scripted_services import scripted_gateway
from tests.demo_model import demo_model
from tests.loopback_hub import LoopbackHub
from tests.speech import librivox
from tests.stack import IMAGE_MODEL, MODEL, SPEECH_MODEL, Stack, running_stack
from tests.whisper_weights import tiny_en_ct2

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "console"
SIZE = {"width": 1280, "height": 800}
TALL = {"width": 1280, "height": 1000}
PHONE = {"width": 360, "height": 740}
QUESTIONS = ("What is the capital of France?", "Write a Python function that adds two numbers.")
# What the demo model cannot write.
RENDERED = r"""The sum of the first numbers is $1 + 2 + \dots + n = \frac{n(n+1)}{2}$. By induction:

\[
\begin{aligned}
\sum_{k=1}^{n+1} k &= \frac{n(n+1)}{2} + (n+1) \\
&= \frac{(n+1)(n+2)}{2}
\end{aligned}
\]

```mermaid
flowchart LR
  A[True for 1] --> C{True for all n?}
  B[From n follows n + 1] --> C
  C -->|yes| D(Proved)
```
"""
PROMPTS = ("a red circle on a blue background", "a yellow triangle on a green background")


def chat(page: Page) -> None:
    page.unfold("Settings")
    page.fill("input", "Temperature", "0")
    page.fill("input", "Max tokens", "120")
    # The first answer waits for the model to load.
    page.fill("textarea", "Message", "Hello")
    page.press("Enter")
    page.wait("document.querySelector('.answer .below')")
    page.click("a", "New conversation")
    page.wait("!document.querySelector('.answer')")
    for number, question in enumerate(QUESTIONS, start=1):
        page.fill("textarea", "Message", question)
        page.press("Enter")
        page.wait(f"document.querySelectorAll('.answer .below').length === {number}")
    page.evaluate("document.querySelector('details.panel').open = false")


def audio(page: Page) -> None:
    page.wait("document.querySelector('input[type=file]')")
    page.attach("input[type=file]", librivox()[0].path)
    page.wait("document.querySelector('.transcript[aria-busy=false]')")
    page.evaluate("document.querySelector('audio').currentTime = 2.5")
    page.wait("document.querySelector('.word.heard')")


def image(page: Page) -> None:
    page.fill("input", "Seed", "7")
    for number, prompt in enumerate(PROMPTS, start=1):
        page.fill("textarea", "Prompt", prompt)
        page.click("button", "Generate")
        page.wait(f"document.querySelectorAll('.gallery img').length === {number}")


def models(page: Page) -> None:
    """Searches the hub, and adds a model."""
    page.click("summary", "Find a model on the Hugging Face Hub")
    page.fill("input", "Name", "smollm2")
    page.click("button", "Search")
    page.click(".result button", "Add")
    page.wait("document.querySelector('.result .badge.ready + .hint')")
    page.evaluate("window.scrollTo({top: 0, behavior: 'instant'})")


def machine(page: Page) -> None:
    """Sends some chats to fill the plots, and opens the view of the machine."""
    page.wait("document.querySelectorAll('.plot canvas').length > 1")
    page.evaluate("location.hash = '#/chat'")
    page.unfold("Settings")
    page.fill("input", "Temperature", "0")
    page.fill("input", "Max tokens", "60")
    for number in range(1, 9):
        page.fill("textarea", "Message", "Tell me of the sea.")
        page.press("Enter")
        page.wait(f"document.querySelectorAll('.answer .below').length === {number}")
    page.evaluate("location.hash = '#/machine'")
    page.wait("document.querySelector('.machine')?.innerText.includes('Text: request duration')")
    page.resize(**TALL)
    page.evaluate("document.querySelector('.machine').scrollIntoView({block: 'start', behavior: 'instant'})")


def rendering(browser: Browser) -> None:
    """Takes the screenshots of an answer with formulas and a diagram, which is scripted."""
    with scripted_gateway() as scripted:
        scripted.chat.deltas = [chat_service_pb2.ChatDelta(text=RENDERED)]
        page = browser.open(f"http://127.0.0.1:{scripted.port}/#/chat", **SIZE)
        page.wait_text("Connected")
        page.fill("textarea", "Message", "How do I prove the formula for the sum of the first numbers?")
        page.press("Enter")
        drawn = ""
        for scheme in ("light", "dark"):
            page.colours(scheme)
            page.wait("document.querySelector('.answer math') && document.querySelector('.answer img')?.naturalWidth")
            page.wait(f"document.querySelector('.answer img').src !== {drawn!r}")  # drawn anew in other colours
            drawn = page.evaluate("document.querySelector('.answer img').src")
            page.evaluate(f"document.activeElement.blur(), {PAINTED}")
            (PICTURES / f"rendering-{scheme}.png").write_bytes(page.screenshot())
        page.close()


PAINTED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
# The actions before a screenshot on a phone.
PHONE_VIEWS = {
    "chat": "document.querySelectorAll('details.panel').forEach((each) => (each.open = false)); window.scrollTo(0, 0)",
    "models": "window.scrollTo({top: 0, behavior: 'instant'})",
    "machine": "document.querySelector('.plots').scrollIntoView({block: 'start', behavior: 'instant'})",
}
VIEWS: dict[str, Callable[[Page], None]] = {
    "chat": chat,
    "audio": audio,
    "image": image,
    "models": models,
    "machine": machine,
}


def fill_hub(hub: LoopbackHub, folder: Path) -> None:
    """Adds repositories as the real hub has them; their files are the demo model."""
    shutil.copy(demo_model(), folder / "SmolLM2-135M-Instruct-F16.gguf")
    about = {"tags": ["gguf", "license:apache-2.0"], "gguf": {"architecture": "llama"}}
    hub.add("example/SmolLM2-135M-Instruct-GGUF", folder, downloads=41_200, pipeline_tag="text-generation", **about)
    hub.add("example/SmolLM2-135M-GGUF", folder, downloads=9_800, **(about | {"gguf": {"architecture": "unknown"}}))


def take(browser: Browser, stack: Stack, names: list[str]) -> None:
    for name, fill in VIEWS.items():
        if names and name not in names:
            continue
        page = browser.open(f"http://127.0.0.1:{stack.port}/#/{name}", **SIZE)
        page.wait_text("Connected")
        page.colours("light")
        fill(page)
        # The focused element would be drawn with its focus ring.
        page.evaluate("document.activeElement.blur()")
        for scheme in ("light", "dark"):
            page.colours(scheme)
            page.evaluate(PAINTED)
            (PICTURES / f"{name}-{scheme}.png").write_bytes(page.screenshot())
        if name in PHONE_VIEWS:
            page.colours("light")
            page.resize(**PHONE)
            page.evaluate(PHONE_VIEWS[name])
            page.evaluate(PAINTED)
            (PICTURES / f"{name}-phone.png").write_bytes(page.screenshot())
        page.close()


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    weights = ROOT / "training" / "shapes_sd" / "weights"
    registered = f"{MODEL}={demo_model()},{SPEECH_MODEL}={tiny_en_ct2()},{IMAGE_MODEL}={weights}"
    replicas = {"ALLM_AUDIO_REPLICAS": "1", "ALLM_IMAGE_REPLICAS": "1"}
    with (
        tempfile.TemporaryDirectory() as home,
        tempfile.TemporaryDirectory() as folder,
        LoopbackHub() as hub,
        running_stack(Path(home), ALLM_MODELS=registered, HF_ENDPOINT=hub.endpoint, **replicas) as stack,
        running_chromium() as browser,
    ):
        fill_hub(hub, Path(folder))
        take(browser, stack, sys.argv[1:])
        rendering(browser)
