"""The view of a scripted machine, and the detection of a connection that dies silently."""

from __future__ import annotations

import time

import pytest
from allm.models.v1 import figures_pb2, machine_service_pb2, model_pb2

from services import errors
from tests.console.axe import problems
from tests.console.chromium import Browser, Page
from tests.console.freezing_proxy import FreezingProxy
from tests.console.scripted_services import Scripted, ScriptedMachine
from tests.console.test_accessibility import PHONE

GIB = 1 << 30
PAST_SECONDS = 600
EVICTED = "big-model"
REASON = "pressure"
STORM = 10  # requests within a second or two
HIDE = """
Object.defineProperty(document, "hidden", {configurable: true, get: () => %s});
document.dispatchEvent(new Event("visibilitychange")); 1
"""


@pytest.fixture
def machine(scripted: Scripted) -> ScriptedMachine:
    return scripted.machine


def show(page: Page, view: str = "machine") -> None:
    page.evaluate(f"location.hash = '#/{view}'")
    page.wait(f"document.querySelector('h1')?.innerText.toLowerCase() === {view!r}")


def sample(at: float, used_gib: int = 8) -> machine_service_pb2.MachineSample:
    """A sample with a host with one GPU, and a busy text service."""
    made = machine_service_pb2.MachineSample()
    made.time.FromMilliseconds(round(at * 1000))
    host = made.hosts.add(
        id="h", name="workbench", total_bytes=16 * GIB, used_bytes=used_gib * GIB, threshold_share=0.8
    )
    host.devices.add(id="d", name="cuda:0", total_bytes=80 * GIB, used_bytes=60 * GIB)
    text = made.traffic.add(modality=model_pb2.MODALITY_TEXT, replicas=2, running=5, waiting=3)
    text.generated_tokens_per_second = 123.4
    text.prompt_tokens_per_second = 1500
    text.request.p50_seconds, text.request.p95_seconds, text.request.p99_seconds = 1.5, 4, 9
    text.first_output.p50_seconds, text.first_output.p95_seconds, text.first_output.p99_seconds = 0.12, 0.5, 0.9
    text.requests_per_second = 4
    for model, running in (("big-model", 4), ("small-model", 1)):
        own = text.models.add(model_id=model, running=running, requests_per_second=2, generated_tokens_per_second=61.7)
        own.request.p50_seconds, own.request.p95_seconds, own.request.p99_seconds = 1.5 * running, 7, 8
    audio = made.traffic.add(modality=model_pb2.MODALITY_AUDIO, replicas=1)
    audio.audio_seconds_per_second = 7.5
    return made


def past() -> list[machine_service_pb2.MachineSample]:
    """Samples of the last ten minutes: the host starts nearly empty; a model is evicted in the middle."""
    now = time.time()
    made = [sample(now - PAST_SECONDS + at, used_gib=2 if at == 0 else 8) for at in range(0, PAST_SECONDS, 2)]
    middle = made[len(made) // 2]
    kind = figures_pb2.MACHINE_EVENT_KIND_EVICTED
    middle.events.add(time=middle.time, kind=kind, model_id=EVICTED, replica="text-1", reason=REASON)
    return made


def figures(page: Page, title: str) -> str:
    """Returns the figures below a plot."""
    return str(
        page.evaluate(
            "[...document.querySelectorAll('.plot')].find((each) => each.innerText.startsWith("
            f"{title!r})).querySelector('dl').innerText.replace(/\\s+/g, ' ')"
        )
    )


def test_the_last_minutes_are_there_at_once(page: Page, machine: ScriptedMachine) -> None:
    machine.past = past()
    machine.now = sample(0)
    show(page)
    page.wait_text(f"{EVICTED} was evicted on text-1: the machine was low on memory")
    page.wait("document.querySelectorAll('.plot canvas').length === 6")  # each is drawn a moment after its text
    assert figures(page, "Memory of workbench") == "Host 8.0 GiB of 16.0 GiB cuda:0 60.0 GiB of 80.0 GiB Threshold 80%"
    assert figures(page, "Requests") == "Running 5 Waiting 3"
    assert figures(page, "Generated tokens") == "Generated 123 tokens/s"
    assert figures(page, "Prompt tokens") == "Prompt 1,500 tokens/s"
    assert figures(page, "Request duration") == "P50 1.50 s P95 4.00 s P99 9.00 s"
    tables = page.evaluate("document.querySelector('.tables').innerText")
    assert "7.5 s of audio/s" in tables
    lines = [" ".join(line.split()) for line in tables.splitlines()]
    assert "big-model 4 0 2 61.7 tokens/s" in lines
    assert "small-model 1 0 2 61.7 tokens/s" in lines
    assert "big-model: request duration 6.00 s 7.00 s 8.00 s" in lines
    assert "small-model: request duration 1.50 s 7.00 s 8.00 s" in lines
    assert "120 ms" in tables
    assert problems(page) == []
    page.resize(**PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert problems(page) == []


def test_one_goes_back_in_time_by_keys(page: Page, machine: ScriptedMachine) -> None:
    machine.past = past()
    machine.now = sample(0)
    show(page)
    page.wait_text("8.0 GiB of 16.0 GiB")
    page.evaluate("document.querySelector('.moment input').focus()")
    page.press("Home")
    page.wait_text("2.0 GiB of 16.0 GiB")  # the value at the start
    assert "now" not in page.evaluate("document.querySelector('.moment input').getAttribute('aria-valuetext')")
    page.click("button", "Back to now")
    page.wait_text("8.0 GiB of 16.0 GiB")


def test_the_mouse_goes_back_in_time(page: Page, machine: ScriptedMachine) -> None:
    machine.past = past()
    machine.now = sample(0)
    show(page)
    page.wait("document.querySelector('.plot .u-over')")
    page.evaluate("document.querySelector('.plots').scrollIntoView({block: 'center', behavior: 'instant'})")
    left, top = page.evaluate(
        "(() => { const box = document.querySelector('.plot .u-over').getBoundingClientRect();"
        " return [box.x + 1, box.y + box.height / 2]; })()"
    )
    shown = "document.querySelector('.moment output').innerText"
    for step in (40, 0):
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + step, y=top)
        page.wait(f"!{shown}.startsWith('now')")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    page.wait(f"{shown}.startsWith('now')")
    # Leaving the view removes its plots.
    page.evaluate("location.hash = '#/chat'")
    page.wait("document.querySelector('#message') && !document.querySelector('.plot')")


def test_unmeasured_figures_are_explained(page: Page, machine: ScriptedMachine) -> None:
    show(page)
    page.wait_text("No service has reported data yet.")
    page.wait_text("No tokens were generated in the last 15 minutes.")
    assert page.evaluate("document.querySelectorAll('.plot canvas').length") == 0


def test_a_machine_that_is_not_shown_is_a_sentence_and_no_storm(page: Page, machine: ScriptedMachine) -> None:
    machine.wait_watched(1)
    machine.error = errors.Overloaded("64 others watch the machine already", retry_after=2)
    machine.hang_up()
    show(page)
    page.wait_text("64 others watch the machine already")
    page.wait("document.querySelector('.link .word').innerText === 'Connected'")
    assert len([url for url in page.requested() if url.endswith("/WatchMachine")]) < STORM
    machine.error = None
    page.wait("!document.body.innerText.includes('64 others')")


def test_hidden_tab_holds_no_connection(page: Page, machine: ScriptedMachine) -> None:
    machine.wait_watched(1)
    page.evaluate(HIDE % "true")
    machine.wait_watched(0)
    page.wait("document.querySelector('.link .word').innerText === 'Connected'")
    page.evaluate(HIDE % "false")
    machine.wait_watched(1)


def test_a_connection_that_dies_silently_is_noticed(
    browser: Browser, scripted: Scripted, machine: ScriptedMachine
) -> None:
    with FreezingProxy(scripted.port) as proxy:
        page = browser.open(f"http://127.0.0.1:{proxy.port}/#/chat")
        page.wait_text("Connected")
        machine.wait_watched(1)
        proxy.freeze()
        page.wait_text("Reconnecting")
        assert "The connection to the server is interrupted" in page.evaluate(
            "document.querySelector('.banner').innerText"
        )
        proxy.thaw()
        page.wait_text("Connected")
        page.wait("!document.querySelector('.banner')")
        page.fill("textarea", "Message", "Hello")
        page.press("Enter")
        page.wait("document.querySelector('.answer .below')")
        page.close()


def test_without_a_hub_there_is_no_search(page: Page) -> None:
    """The scripted catalog says in its watch that it may not ask the hub."""
    show(page, "models")
    page.click("summary", "Find a model on the Hugging Face Hub")
    page.wait_text("The server is offline: HF_HUB_OFFLINE is set")
    assert page.evaluate("document.querySelector('.hub form')") is None


def test_a_models_own_files_are_shown_with_its_artifact(page: Page) -> None:
    show(page, "models")
    page.wait_text("text-0 on cuda serves openai/model-onnx@main, keeps the model's own files: downloading, 2.0 GiB of")
