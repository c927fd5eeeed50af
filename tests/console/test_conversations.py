"""Conversations that the browser keeps: every flow, over a reload, by keyboard, on a desk and on a phone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from allm.models.v1 import model_pb2
from allm.text.v1 import chat_service_pb2

from tests.console.axe import problems
from tests.console.chromium import POLL_SECONDS, WAIT_SECONDS, Browser, Page
from tests.console.scripted_services import MODEL, Scripted

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1440, "height": 900}
SAID = "document.querySelector('.answer:last-of-type > .markdown')?.innerText"
MESSAGES = "[...document.querySelectorAll('.said')].map((each) => each.innerText)"
TITLES = "[...document.querySelectorAll('.entry .title')].map((each) => each.innerText)"
STORED = "new Promise((done) => { const asked = indexedDB.open('allm'); asked.onsuccess = () => {\
 const all = asked.result.transaction('conversations').objectStore('conversations').getAll();\
 all.onsuccess = () => { asked.result.close(); done(JSON.stringify(all.result)); }; }; })"
Open = Callable[..., Page]


@pytest.fixture
def chat(browser: Browser, scripted: Scripted) -> Iterator[Open]:
    """Opens the chat in a new browser profile; fails if the browser reports an error."""
    opened: list[Page] = []

    def open_chat(**size: int) -> Page:
        page = browser.open(f"http://127.0.0.1:{scripted.port}/#/chat", **(size or DESK))
        opened.append(page)
        page.wait_text("Connected")
        page.wait("document.querySelector('.picker select').value")
        return page

    yield open_chat
    for page in opened:
        assert page.complaints() == []
        page.close()


def answers(scripted: Scripted, text: str) -> None:
    scripted.chat.deltas = [chat_service_pb2.ChatDelta(text=text)]


def say(page: Page, text: str) -> None:
    """Sends a message, and waits for the end of its answer."""
    before = page.evaluate("document.querySelectorAll('.answer').length")
    page.fill("textarea", "Message", text)
    page.press("Enter")
    page.wait(f"document.querySelectorAll('.answer .below').length === {before + 1}")


def stored(page: Page, *texts: str) -> None:
    """Waits until the database has conversations with these texts."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not all(text in (found := page.evaluate(STORED)) for text in texts):
        assert time.monotonic() < deadline, found
        time.sleep(POLL_SECONDS)


def asked(scripted: Scripted) -> list[str]:
    """Returns the texts of the last request's messages."""
    return ["".join(part.text for part in message.content) for message in scripted.chat.asked[-1].messages]


def test_a_reload_loses_nothing(chat: Open, scripted: Scripted) -> None:
    page = chat()
    answers(scripted, "In **spring**.")
    page.unfold("Settings")
    page.fill("textarea", "System prompt", "Be brief.")
    page.fill("input", "Temperature", "0.25")
    say(page, "When do the swifts come?")
    page.fill("textarea", "Message", "And when do they")
    address = page.evaluate("location.hash")
    stored(page, "In **spring**.", "0.25")
    page.reload()
    page.wait(f"({SAID}) === 'In spring.'")
    assert page.evaluate("location.hash") == address
    assert page.evaluate(MESSAGES) == ["When do the swifts come?"]
    assert page.evaluate("document.querySelector('#message').value") == "And when do they"
    page.unfold("Settings")
    say(page, "And when do they leave?")
    assert asked(scripted) == ["Be brief.", "When do the swifts come?", "In **spring**.", "And when do they leave?"]
    assert scripted.chat.asked[-1].sampling.temperature == 0.25
    # A new conversation begins empty, with the settings on the page.
    page.click("a", "New conversation")
    page.wait(f"{MESSAGES}.length === 0")
    say(page, "Good morning")
    assert asked(scripted) == ["Be brief.", "Good morning"]


def test_an_answer_that_a_reload_interrupts_stays(chat: Open, scripted: Scripted) -> None:
    page = chat()
    answers(scripted, "Half of a sen")
    scripted.chat.go_on.clear()
    page.fill("textarea", "Message", "Hello")
    page.press("Enter")
    page.wait(f"({SAID}) === 'Half of a sen'")
    page.reload()
    page.wait(f"({SAID}) === 'Half of a sen'")
    page.wait_text("Stopped.")
    scripted.chat.reset()
    answers(scripted, "A whole sentence.")
    page.click("button", "Regenerate")
    page.wait(f"({SAID}) === 'A whole sentence.'")


def test_an_answer_of_a_tab_that_dies_ends_in_the_others(chat: Open, browser: Browser, scripted: Scripted) -> None:
    page = chat()
    scripted.chat.go_on.clear()
    answers(scripted, "Half of a sen")
    dying = browser.open(page.evaluate("location.href"), beside=page)
    dying.wait("document.querySelector('.picker select').value")
    dying.fill("textarea", "Message", "Hello")
    dying.press("Enter")
    dying.wait(f"({SAID}) === 'Half of a sen'")
    stored(page, "Half of a sen")
    page.click("a", "Hello")
    page.wait("document.querySelector('.answer[aria-busy=true]')")
    dying.crash()
    page.wait_text("Stopped.")
    assert page.evaluate(SAID) == "Half of a sen"
    scripted.chat.reset()
    answers(scripted, "A whole sentence.")
    page.click("button", "Regenerate")
    page.wait(f"({SAID}) === 'A whole sentence.'")


def test_an_answer_goes_on_while_another_conversation_is_open(chat: Open, scripted: Scripted) -> None:
    page = chat()
    scripted.chat.go_on.clear()
    page.fill("textarea", "Message", "A slow question")
    page.press("Enter")
    page.wait("document.querySelector('.answer[aria-busy=true]')")
    slow = scripted.chat.go_on
    page.click("a", "New conversation")
    page.wait(f"{MESSAGES}.length === 0")
    scripted.chat.reset()
    answers(scripted, "Quick.")
    say(page, "A quick question")
    page.wait_text("Answering…")
    slow.set()
    page.wait("!document.body.innerText.includes('Answering…')")
    page.click("a", "A slow question")
    page.wait(f"{MESSAGES}[0] === 'A slow question' && document.querySelector('.answer[aria-busy=false]')")


def test_every_turn_has_versions(chat: Open, scripted: Scripted) -> None:
    page = chat()
    answers(scripted, "one")
    say(page, "First question")
    answers(scripted, "two")
    say(page, "Second question")
    # Any answer can be regenerated; what followed the other version comes back with it.
    answers(scripted, "one again")
    page.click("article:nth-of-type(2) button", "Regenerate")
    page.wait(f"({SAID}) === 'one again'")
    assert page.evaluate(MESSAGES) == ["First question"]
    assert asked(scripted) == ["First question"]
    page.click("button", "Previous version")
    page.wait(f"{MESSAGES}.length === 2")
    assert page.evaluate(SAID) == "two"
    # Another version of a message is answered anew.
    answers(scripted, "three")
    page.click("article:nth-of-type(3) button", "Edit")
    page.fill("textarea", "Your message", "Another second question")
    page.click("button", "Send as a new version")
    page.wait(f"({SAID}) === 'three'")
    assert asked(scripted) == ["First question", "one", "Another second question"]
    # A correction changes its turn alone.
    page.click("article:nth-of-type(2) button", "Edit")
    page.fill("textarea", f"Answer from {MODEL}", "uno")
    page.click("button", "Save")
    page.wait_text(f"{MODEL} (edited)")
    assert page.evaluate(MESSAGES) == ["First question", "Another second question"]
    say(page, "Third question")
    assert asked(scripted)[1] == "uno"
    stored(page, "Third question")
    page.reload()
    page.wait(f"{MESSAGES}.length === 3")
    numbers = "[...document.querySelectorAll('.versions [role=status]')].map((each) => each.innerText)"
    assert page.evaluate(numbers) == ["1 of 2", "2 of 2"]


def test_conversations_are_found_named_and_deleted(chat: Open, scripted: Scripted) -> None:
    page = chat()
    answers(scripted, "Bees dance.")
    say(page, "How do insects talk?")
    answers(scripted, "With song.")
    page.click("a", "New conversation")
    page.wait(f"{MESSAGES}.length === 0")
    say(page, "How do birds talk?")
    assert page.evaluate(TITLES) == ["How do birds talk?", "How do insects talk?"]
    page.fill("input", "Search conversations", "talk bees")
    page.wait(f"{TITLES}.length === 1")
    page.wait_text("Bees dance.")
    page.click("button", "Actions for How do insects talk?")
    page.click("button", "Rename")
    page.fill("input", "Title", "On insects")
    page.press("Enter")
    page.wait(f"{TITLES}[0] === 'On insects'")
    page.fill("input", "Search conversations", "wolves")
    page.wait_text("No conversation contains these words.")
    page.fill("input", "Search conversations", "")
    page.click("button", "Actions for How do birds talk?")
    page.click(".entry + .row button", "Delete")
    page.click("button.danger", "Delete How do birds talk?")
    page.wait(f"{TITLES}.length === 1")
    assert page.evaluate("location.hash") == "#/chat/new", "the open conversation was deleted"
    assert page.evaluate("document.activeElement.innerText") == "New conversation"
    page.reload()
    page.wait(f"{TITLES}.length === 1 && {TITLES}[0] === 'On insects'")


def test_tabs_follow_each_other(chat: Open, browser: Browser, scripted: Scripted) -> None:
    page = chat()
    other = browser.open(page.evaluate("location.href"), beside=page)
    other.wait_text("Conversations are kept in this browser")
    answers(scripted, "Bees dance.")
    say(page, "How do insects talk?")
    other.click("a", "How do insects talk?")
    other.wait(f"({SAID}) === 'Bees dance.'")
    say(other, "And birds?")
    page.wait(f"{MESSAGES}.length === 2 && document.querySelectorAll('.answer .below').length === 2")
    page.click("button", "Actions for How do insects talk?")
    page.click(".entry + .row button", "Delete")
    page.click("button.danger", "Delete How do insects talk?")
    other.wait(f"{TITLES}.length === 0 && location.hash === '#/chat/new'")
    assert other.complaints() == []


SAVES = """
window.saved = [];
const make = URL.createObjectURL;
URL.createObjectURL = (blob) => { blob.text().then((text) => window.saved.push(text)); return make(blob); }; 1
"""


def test_conversations_move_to_another_browser(chat: Open, scripted: Scripted, tmp_path: Path) -> None:
    page = chat()
    answers(scripted, "# Bees\n\nThey dance.")
    say(page, "How do insects talk?")
    page.evaluate(SAVES)
    page.click("button", "Actions for How do insects talk?")
    page.click("button", "Export as Markdown")
    page.wait("window.saved.length === 1")
    assert "## You\n\nHow do insects talk?" in page.evaluate("window.saved[0]")
    page.click("button", "Export all")
    page.wait("window.saved.length === 2")
    file = tmp_path / "all.json"
    file.write_text(page.evaluate("window.saved[1]"))

    other = chat()
    importer = ".conversations input[type=file]"
    other.attach(importer, file)
    other.wait_text("1 conversation imported.")
    other.attach(importer, file)
    other.click("a", "How do insects talk?")
    other.wait(f"({SAID} ?? '').includes('They dance.')")
    assert other.evaluate(f"{TITLES}.length") == 1, "a file that is imported twice adds nothing"
    stored(other, "They dance.")
    for content, why in {
        "{": "it is not valid JSON",
        "[]": "the file is not an object",
        '{"format": "x", "conversations": []}': 'its "format" is not "allm-conversations"',
        file.read_text().replace('"assistant"', '"elephant"'): 'turns[1].role is neither "user" nor "assistant"',
        file.read_text().replace('"parent": null', '"parent": "nobody"'): "does not follow its parent",
    }.items():
        bad = tmp_path / "bad.json"
        bad.write_text(content)
        other.attach(importer, bad)
        other.wait_text(why)
    assert other.evaluate(f"{TITLES}.length") == 1


def test_a_browser_that_stores_nothing_says_so(chat: Open, scripted: Scripted) -> None:
    page = chat()
    refuse = "IDBFactory.prototype.open = () => { throw new DOMException('Storage is off.', 'SecurityError'); }"
    page.call("Page.addScriptToEvaluateOnNewDocument", source=refuse)
    page.reload()
    page.wait_text("all is lost on reload: Storage is off.")
    page.wait("document.querySelector('.picker select').value")
    answers(scripted, "Still here.")
    say(page, "Hello")
    assert page.evaluate(SAID) == "Still here."


def test_text_files_come_with_a_message(chat: Open, scripted: Scripted, tmp_path: Path) -> None:
    page = chat()
    answers(scripted, "Fine.")
    attach = ".composer input[type=file]"
    for name, content, why in [
        ("photo.png", b"\x89PNG\r\n\x1a\n\0\0", "photo.png is not a picture that this browser can read."),
        ("photo.txt", b"\x89PNG\r\n\x1a\n\0\0", "photo.txt is neither a picture nor a text file in UTF-8."),
        ("none.txt", b"", "none.txt is empty."),
        ("long.txt", b"x" * (1024**2 + 1), "long.txt is 1.0 MiB; the limit is 1.0 MiB."),
    ]:
        (tmp_path / name).write_bytes(content)
        page.attach(attach, tmp_path / name)
        page.wait_text(why)
    file = tmp_path / "notes.md"
    file.write_text("Use ```fences```.\n")
    page.attach(attach, file)
    page.wait("document.querySelector('.files')?.innerText.includes('notes.md')")
    page.reload()
    page.wait("document.querySelector('.files')?.innerText.includes('notes.md')")
    page.wait("document.querySelector('.picker select').value")
    say(page, "Is this right?")
    assert asked(scripted) == ["File notes.md:\n````\nUse ```fences```.\n````\n\nIs this right?"]
    assert page.evaluate("document.querySelector('.files')") is None
    page.unfold("notes.md")
    page.wait_text("Use ```fences```.")


def test_a_chat_begins_with_the_best_model(chat: Open, scripted: Scripted) -> None:
    ready = model_pb2.MODEL_STATE_READY
    slow = model_pb2.Benchmark(runtime="llama_cpp", device="cpu", tokens_per_second=0.8)
    scripted.catalog.others = [
        model_pb2.Model(id="a-tiny-135m-instruct", state=ready),
        model_pb2.Model(id="b-8b-instruct", state=ready),
        model_pb2.Model(id="c-12b-base", state=ready),
        model_pb2.Model(id="d-70b-instruct", state=ready, runtime="llama_cpp", benchmarks=[slow]),
        model_pb2.Model(id="e-400b", state=model_pb2.MODEL_STATE_DOWNLOADING),
        model_pb2.Model(id="a-8b-instruct-vision", state=ready, capabilities=["vision"]),
    ]
    page = chat()
    chosen = "document.querySelector('.picker select').value"
    assert page.evaluate(chosen) == "b-8b-instruct"
    # Somebody's own choice stays.
    page.choose("select", "Model", "a-tiny-135m-instruct")
    page.reload()
    page.wait(f"{chosen} === 'a-tiny-135m-instruct'")


def waits(page: Page, sentence: str) -> None:
    page.fill("textarea", "Message", "Hello")
    page.press("Enter")
    page.wait_text(sentence)


def test_waiting_has_its_reason(chat: Open, scripted: Scripted) -> None:
    scripted.chat.go_on.clear()
    page = chat()
    waits(page, f"Loading {MODEL} into memory…")
    page.click("button", "Stop")
    scripted.catalog.state = model_pb2.MODEL_STATE_LOADED
    page.reload()
    page.wait("document.querySelector('.picker select').value")
    waits(page, "Waiting for the first token…")
    traffic = scripted.machine.now.traffic.add(modality=model_pb2.MODALITY_TEXT)
    traffic.models.add(model_id=MODEL, running=1, waiting=3)
    page.wait_text(f"Waiting in the queue of {MODEL}: 3 requests…")
    page.click("button", "Stop")
    page.wait_text("Stopped.")


def test_a_message_that_is_too_long_is_noticed(chat: Open, scripted: Scripted) -> None:
    scripted.catalog.context_tokens = 100
    page = chat()
    page.fill("textarea", "Message", "word " * 100)
    page.wait_text(f"About 125 tokens, but {MODEL} reads at most 100.")
    page.fill("textarea", "Message", "word")
    page.wait("!document.querySelector('.composer .problem')")


def test_an_invalid_field_moves_nothing(chat: Open) -> None:
    page = chat()
    page.unfold("Settings")
    heights = "[...document.querySelectorAll('.settings, .settings > *')].map((each) => each.offsetHeight)"
    before = page.evaluate(heights)
    page.fill("input", "Max tokens", "1.5")
    page.fill("textarea", "Tools", "[{")
    page.wait_text("Max tokens must be a whole number from 1 to 1000000.")
    page.wait_text("Invalid JSON")
    assert page.evaluate(heights) == before


FOCUS = "document.activeElement"
NAME = f"({FOCUS}.getAttribute('aria-label') ?? {FOCUS}.textContent).trim()"


def use(page: Page, selector: str, name: str) -> None:
    """Goes to an element by Tab, and presses Enter."""
    page.tab_to(selector, name)
    page.press("Enter")


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_the_keyboard_does_everything(chat: Open, scripted: Scripted, size: dict[str, int]) -> None:
    page = chat(**size)
    answers(scripted, "A first answer, with `code`.")
    say(page, "A question")
    answers(scripted, "A second answer.")
    use(page, "button", "Regenerate")
    page.wait(f"({SAID}) === 'A second answer.'")
    use(page, "button", "Previous version")
    page.wait(f"({SAID}) === 'A first answer, with code.'")
    assert page.evaluate(NAME) == "Previous version", "the focus stays where it was"
    page.unfold("Conversations")
    use(page, "button", "Actions for A question")
    use(page, "button", "Rename")
    page.call("Input.insertText", text="A better title")
    page.press("Enter")
    page.wait(f"{TITLES}[0] === 'A better title'")
    assert page.evaluate(NAME) == "Actions for A better title"
    use(page, "button", "Edit")
    page.wait(f"{FOCUS}.id === 'edited'")
    for scheme in ("light", "dark"):
        page.colours(scheme)
        assert problems(page) == [], f"{scheme}, while editing"
    page.press("Escape")
    page.wait("!document.querySelector('#edited')")
    assert page.evaluate(NAME) == "Edit"
    page.unfold("Settings")
    page.unfold("Conversations")
    assert problems(page) == [], "with all parts open"
    use(page, "a", "New conversation")
    page.wait(f"{MESSAGES}.length === 0")
    page.unfold("Conversations")
    use(page, "button", "Actions for A better title")
    use(page, "button", "Delete A better title")
    use(page, "button.danger", "Delete A better title")
    page.wait(f"{TITLES}.length === 0")
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_the_keyboard_brings_and_takes_files(
    chat: Open, scripted: Scripted, tmp_path: Path, size: dict[str, int]
) -> None:
    page = chat(**size)
    notes = tmp_path / "notes.txt"
    notes.write_text("Bees dance.\n")
    page.tab_to("button", "Attach text or pictures")
    page.pick(notes)
    use(page, "button", "Remove notes.txt")
    page.wait(f"!document.querySelector('.files') && {NAME} === 'Attach text or pictures'")
    page.tab_to("button", "Attach text or pictures")
    page.pick(notes)
    page.wait("document.querySelector('.files')")
    answers(scripted, "They do.")
    say(page, "Is it true?")
    assert asked(scripted) == ["File notes.txt:\n```\nBees dance.\n```\n\nIs it true?"]
    page.evaluate(SAVES)
    if size == PHONE:
        use(page, "summary", "Conversations")
    use(page, "button", "Actions for Is it true?")
    use(page, "button", "Export as JSON")
    page.wait("window.saved.length === 1")
    exported = tmp_path / "one.json"
    exported.write_text(page.evaluate("window.saved[0]"))
    use(page, "button", "Delete Is it true?")
    page.wait(f"{NAME} === 'Cancel'")
    use(page, "button.danger", "Delete Is it true?")
    page.wait(f"{TITLES}.length === 0 && {NAME} === 'New conversation'")
    page.tab_to("button", "Import")
    page.pick(exported)
    page.wait_text("1 conversation imported.")
    page.tab_to("input", "Search conversations")
    page.call("Input.insertText", text="wasps")
    page.wait_text("No conversation contains these words.")
    page.press("Escape")
    page.wait(f"{TITLES}.length === 1")
    use(page, "a", "Is it true?")
    page.wait(f"({SAID}) === 'They do.'")


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_the_keyboard_keeps_presets(chat: Open, scripted: Scripted, size: dict[str, int]) -> None:
    page = chat(**size)
    chosen = "document.querySelector('.presets select').selectedOptions[0].innerText"
    use(page, "summary", "Settings")
    page.tab_to("textarea", "System prompt")
    page.call("Input.insertText", text="Answer like a pirate.")
    use(page, "button", "Save as preset")
    page.call("Input.insertText", text="Pirate")
    for scheme in ("light", "dark"):
        page.colours(scheme)
        assert problems(page) == [], scheme
    page.press("Enter")
    page.wait(f"{chosen} === 'Pirate' && {FOCUS}.matches('.presets select')")
    page.press("Home")
    page.wait(f"{chosen} === 'None' && document.querySelector('.settings textarea').value === ''")
    page.reload()
    use(page, "summary", "Settings")
    page.tab_to(".presets select")
    page.wait("document.querySelectorAll('.presets option').length === 2")
    page.press("ArrowRight")
    page.wait("document.querySelector('.settings textarea').value === 'Answer like a pirate.'")
    page.wait("document.querySelector('.picker select').value")
    say(page, "Hello")
    assert asked(scripted) == ["Answer like a pirate.", "Hello"]
    use(page, "button", "Delete preset")
    page.wait(f"{chosen} === 'Not saved' && {FOCUS}.matches('.presets select')")
