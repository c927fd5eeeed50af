"""Every kind of error becomes a sentence with advice; thoughts are separate from answers; markup stays text."""

from __future__ import annotations

import re

import pytest
from allm.text.v1 import chat_service_pb2

from services import errors
from tests.console.chromium import Page
from tests.console.scripted_services import MODEL, REQUEST_ID, Scripted, ScriptedChat
from tests.speech import librivox

# Each error with the advice to the user. For an invalid request the error's message is the advice.
ADVICE = [
    (errors.InvalidRequest("'temperature' must be from 0 to 2, not 3", param="temperature"), "must be from 0 to 2"),
    (errors.ContextLengthExceeded("The prompt has 9 tokens, but this model's context holds 8"), "Edit a message"),
    (errors.Unauthenticated("Incorrect API key provided"), "Enter a valid API key"),
    (errors.Forbidden("This key may not chat"), "Ask the operator of this server"),
    (errors.ModelNotFound("The model `x` does not exist.", param="model"), "Choose another model"),
    (errors.ModelInvalid("The model's file is cut off"), "Select Why under Models"),
    (errors.Unsupported("The model does not think"), "Remove that option"),
    (errors.ModelNotReady("The model is being fetched", retry_after=2), "Wait a moment"),
    (errors.OutOfMemory("The model needs 40 GiB, and 20 are there"), "Unload another model"),
    (errors.Overloaded("256 requests wait already", retry_after=2), "Try again in a moment"),
    (errors.Timeout("The request took longer than 600 seconds"), "ALLM_REQUEST_SECONDS"),
    (errors.Internal("The worker has died"), "the server's log"),
]


@pytest.fixture
def chat(scripted: Scripted) -> ScriptedChat:
    return scripted.chat


def ask(page: Page, text: str = "Hello") -> None:
    page.fill("textarea", "Message", text)
    page.press("Enter")
    page.wait("document.querySelector('.answer .below')")


@pytest.mark.parametrize(("error", "advice"), ADVICE, ids=[type(error).__name__ for error, _ in ADVICE])
def test_an_error_says_what_happened_and_what_to_do(
    page: Page, chat: ScriptedChat, error: errors.AllmError, advice: str
) -> None:
    chat.error = error
    ask(page)
    said = page.evaluate("document.querySelector('.answer .note.bad').innerText")
    assert error.message in said
    assert advice in said
    assert REQUEST_ID in said or re.search("[0-9a-f-]{36}", said)
    asks_for_key = str(isinstance(error, errors.Unauthenticated)).lower()
    page.wait(f"document.querySelector('dialog').open === {asks_for_key}")


def test_output_before_an_error_stays(page: Page, chat: ScriptedChat) -> None:
    chat.deltas = [chat_service_pb2.ChatDelta(text="Half of a sen")]
    chat.error = errors.Internal("The worker has died")
    ask(page)
    said = page.evaluate("document.querySelector('.answer').innerText")
    assert "Half of a sen" in said
    assert "The worker has died" in said


def test_reasoning_is_separated(page: Page, chat: ScriptedChat) -> None:
    chat.deltas = [
        chat_service_pb2.ChatDelta(reasoning="The user greets me. "),
        chat_service_pb2.ChatDelta(reasoning="I should greet back."),
        chat_service_pb2.ChatDelta(text="Good day."),
    ]
    ask(page)
    assert page.evaluate("document.querySelector('.answer > .markdown').innerText") == "Good day."
    assert page.evaluate("document.querySelector('.thoughts').open") is False
    page.click("summary", "Reasoning")
    page.wait_text("The user greets me. I should greet back.")


def test_model_output_never_becomes_markup(page: Page, chat: ScriptedChat) -> None:
    hostile = (
        "<img src=x onerror='window.broken=1'> <script>window.broken=1</script>\n\n"
        "[click](javascript:window.broken=1) ![picture](https://elsewhere.example/p.png) <b>bold?</b>\n\n"
        "<iframe src='https://elsewhere.example'></iframe>\n\n| a | b |\n|---|---|\n| *x* | `y` |\n"
    )
    chat.deltas = [chat_service_pb2.ChatDelta(text=hostile)]
    ask(page)
    inside = "document.querySelectorAll(`.answer > .markdown {}`).length"
    for tag in ("img", "script", "iframe", "b", 'a[href^="javascript"]'):
        assert page.evaluate(inside.format(tag)) == 0, tag
    assert page.evaluate(inside.format("td em")) == 1
    assert page.evaluate(inside.format("td code")) == 1
    assert "<script>" in page.evaluate("document.querySelector('.answer > .markdown').innerText")
    assert page.evaluate("window.broken ?? null") is None
    assert [url for url in page.requested() if "elsewhere" in url] == []


def test_code_is_coloured_and_stays_text(page: Page, chat: ScriptedChat) -> None:
    hostile = "<img src=x onerror='window.broken=1'>"
    chat.deltas = [
        chat_service_pb2.ChatDelta(text=f"```python\ndef f():\n    return 1\n```\n\n```html\n{hostile}\n```\n")
    ]
    ask(page)
    page.wait("document.querySelectorAll('.codeblock').length === 2")
    assert page.evaluate("document.querySelector('.codeblock .hljs-keyword').innerText") == "def"
    assert page.evaluate("[...document.querySelectorAll('.codeblock code')].map((each) => each.innerText)") == [
        "def f():\n    return 1",
        hostile,
    ]
    assert page.evaluate("document.querySelectorAll('.codeblock img').length") == 0
    assert page.evaluate("window.broken ?? null") is None


def test_models_that_do_not_answer_are_listed_with_the_reason(page: Page) -> None:
    options = page.evaluate("[...document.querySelectorAll('.picker option')].map((o) => [o.innerText, o.disabled])")
    assert options == [[MODEL, False], ["broken: its file is cut off", True]]


def test_the_form_is_sent_as_the_request(page: Page, chat: ScriptedChat) -> None:
    page.unfold("Settings")
    page.fill("textarea", "System prompt", "Be brief.")
    for name, value in {"Temperature": "0.25", "Top P": "0.5", "Top K": "7", "Max tokens": "9", "Seed": "11"}.items():
        page.fill("input", name, value)
    page.fill("textarea", "Stop sequences (one per line)", "END\nFIN")
    page.choose("select", "Reasoning effort", "low")
    ask(page)
    (asked,) = chat.asked
    sampling = asked.sampling
    assert asked.model == MODEL
    assert [part.text for message in asked.messages for part in message.content] == ["Be brief.", "Hello"]
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.25, 0.5, 7)
    assert (sampling.max_tokens, sampling.seed, list(sampling.stop)) == (9, 11, ["END", "FIN"])
    assert asked.reasoning_effort == "low"
    assert not sampling.HasField("min_p")


def test_loading_is_told_apart_from_the_work(page: Page) -> None:
    """The catalog reports that neither model is loaded; their services never answer."""
    page.evaluate(
        "window.real = fetch; window.fetch = (url, about) =>"
        " /Transcribe|GenerateImage/.test(url) ? new Promise(() => {}) : real(url, about); 1"
    )
    page.evaluate("location.hash = '#/audio'")
    page.wait("document.querySelector('input[type=file]')")
    page.attach("input[type=file]", librivox()[0].path)
    page.wait_text("Loading speech into memory…")
    page.evaluate("location.hash = '#/image'")
    page.fill("textarea", "Prompt", "a red circle")
    page.click("button", "Generate")
    page.wait_text("Loading images into memory…")
