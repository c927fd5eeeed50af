"""The chat in a real browser, against the running stack."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable

import pytest

from tests.console.chromium import Page
from tests.stack import MODEL, POLL_SECONDS, Stack

Open = Callable[[str], Page]
ANSWERED = "document.querySelector('.answer') && !document.querySelector('.answer[aria-busy=true]')"
SAID = "document.querySelector('.answer .markdown')?.innerText ?? ''"
PATIENCE_SECONDS = 60.0
ENDLESS = "2"  # at this temperature the end of a turn is one of 49,152 about equally likely tokens


def figure(stack: Stack, name: str) -> float:
    """Returns a gauge or counter of the demo model from the text service's metrics."""
    with urllib.request.urlopen(stack.note["metrics"]["text"], timeout=30) as reply:
        found = re.search(rf'^{name}{{model="{MODEL}"}} (\S+)$', reply.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)


def wait_idle(stack: Stack) -> None:
    """Waits until the model has no running and no waiting request."""
    gauges = ("allm_requests_running", "allm_requests_waiting")
    wait_until(lambda: not any(figure(stack, name) for name in gauges))


def ask(page: Page, text: str, **settings: str) -> None:
    page.unfold("Settings")
    for name, value in {"Temperature": "0", **settings}.items():
        page.fill("input, textarea", name, value)
    page.fill("textarea", "Message", text)
    page.press("Enter")


def test_an_answer_streams_and_is_measured(view: Open) -> None:
    page = view("chat")
    ask(page, "What is the capital of France?")
    page.wait(ANSWERED)
    assert "Paris" in page.evaluate(SAID)
    figures = page.evaluate("document.querySelector('.figures').innerText")
    assert re.search(r"first token [\d.]+ m?s", figures)
    assert re.search(r"[\d.]+ tokens/s", figures)
    assert re.search(r"\d+ tokens", figures)


def test_stopping_frees_the_model(view: Open, stack: Stack) -> None:
    page = view("chat")
    wait_idle(stack)
    ask(page, "Tell me a long story.", Temperature=ENDLESS)
    page.wait(f"({SAID}).length > 20")
    wait_until(lambda: figure(stack, "allm_requests_running") == 1)
    page.fill("textarea", "Message", "And then?")
    page.click("button", "Stop")
    page.wait_text("Stopped.")
    wait_idle(stack)
    kept = page.evaluate(SAID)
    assert len(kept) > 20
    assert page.evaluate("document.querySelector('#message').value") == "And then?", "what is not sent yet"
    # The text so far stays, and the next message is answered.
    ask(page, "What is the capital of France?", **{"Max tokens": "20"})  # the answer may not end by itself
    page.wait("document.querySelectorAll('.answer').length === 2 && !document.querySelector('[aria-busy=true]')")


def test_closing_the_tab_frees_the_model(view: Open, stack: Stack) -> None:
    page = view("chat")
    wait_idle(stack)
    ask(page, "Tell me a long story.", Temperature=ENDLESS)
    page.wait(f"({SAID}).length > 20")
    assert page.complaints() == []
    page.go("about:blank")
    wait_idle(stack)


def test_a_schema_is_kept(view: Open) -> None:
    page = view("chat")
    schema = json.dumps(
        {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
        | {"additionalProperties": False}
    )
    ask(page, "The capital of France as JSON", **{"JSON schema of the answer": schema})
    page.wait(ANSWERED)
    assert re.search(
        r'\{\s*"city": "(Paris|Rome)"\s*\}', page.evaluate("document.querySelector('.answer pre').innerText")
    )


def test_a_tool_is_called_and_answered(view: Open) -> None:
    page = view("chat")
    page.unfold("Settings")
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = json.dumps([{"name": "get_weather", "description": "The weather in a city", "parameters": parameters}])
    page.choose("select", "Tool choice", "required")
    ask(page, "What is the weather in Paris?", Tools=tools, **{"Max tokens": "60"})
    page.wait("document.querySelector('.call')")
    assert "get_weather" in page.evaluate("document.querySelector('.call').innerText")
    page.choose("select", "Tool choice", "none")
    page.wait("document.querySelector('.call textarea')")
    for number in range(1, page.evaluate("document.querySelectorAll('.call').length") + 1):
        page.fill(f".call:nth-of-type({number}) textarea", "", "22 degrees and sunny")
    page.click("button", "Submit tool result")
    page.wait("document.querySelectorAll('.answer').length === 2 && !document.querySelector('[aria-busy=true]')")
    assert "22 degrees and sunny" in page.evaluate("document.querySelector('.call').innerText")
    assert page.evaluate("document.querySelectorAll('.note.bad').length") == 0


def test_the_request_can_be_had_for_programs(view: Open, stack: Stack) -> None:
    page = view("chat")
    ask(page, "Say 'fine', it's short", **{"Max tokens": "20"})
    page.wait(ANSWERED)
    expected = {
        "curl": f"curl --no-buffer http://127.0.0.1:{stack.port}/v1/chat/completions",
        "Python": "from openai import OpenAI",
        "Node": 'import OpenAI from "openai"',
        "gRPC": "allm.text.v1.ChatService/StreamChatCompletion",
    }
    for language, part in expected.items():
        page.choose("select", "Copy as", language)
        page.wait(f"document.querySelector('.answer .codeblock figcaption')?.innerText.includes('{language}')")
        text = page.evaluate("document.querySelector('.answer .codeblock pre').innerText")
        assert part in text
        assert MODEL in text


@pytest.mark.parametrize(
    ("field", "wrong", "sentence"),
    [
        ("Temperature", "3", "Temperature must be a number from 0 to 2."),
        ("Max tokens", "1.5", "Max tokens must be a whole number from 1 to 1000000."),
        ("Tools", "[{", "Invalid JSON"),
        ("Tools", '[{"description": "nameless"}]', "Every tool needs a name."),
    ],
)
def test_form_errors_are_shown_before_sending(view: Open, field: str, wrong: str, sentence: str) -> None:
    page = view("chat")
    page.unfold("Settings")
    page.fill("input, textarea", field, wrong)
    page.fill("textarea", "Message", "Hello")
    page.wait_text(sentence)
    page.wait("document.querySelector('button[type=submit]').disabled")


def test_a_refusal_is_a_sentence(view: Open) -> None:
    page = view("chat")
    ask(page, "Hello", **{"JSON schema of the answer": '{"type": "array", "uniqueItems": true}'})
    page.wait("document.querySelector('.note.bad')")
    said = page.evaluate("document.querySelector('.note.bad').innerText")
    assert "uniqueItems" in said
    assert re.search(r"Request ID\s+[0-9a-f-]{36}", said)


def test_markup_of_a_model_stays_text(view: Open) -> None:
    """A model's output is shown, never run: here a user has the model say it."""
    page = view("chat")
    page.evaluate("window.broken = false")
    ask(page, "<img src=x onerror='window.broken = true'><script>window.broken = true</script>", **{"Max tokens": "8"})
    page.wait(ANSWERED)
    assert "<script>" in page.evaluate("document.querySelector('.said').innerText")
    assert page.evaluate("window.broken") is False
