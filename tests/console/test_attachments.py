"""Pictures that a message brings along: attached, pasted, dropped, kept, sent, and copied as code."""

from __future__ import annotations

import base64
import io
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from allm.models.v1 import model_pb2
from allm.text.v1 import chat_pb2, chat_service_pb2
from PIL import Image

from tests.console.axe import problems
from tests.console.chromium import Page
from tests.console.scripted_services import MODEL, Scripted

SEEING = "seeing"
ATTACH = ".composer input[type=file]"
SEEN = "[...document.querySelectorAll('img.attached')].map((each) => [each.alt, each.naturalWidth])"
# Sends the page an event that brings a file, and a text for the clipboard of an office program.
BRING = """
(kind, name, type, data, office) => {
  const brought = new DataTransfer();
  brought.items.add(new File([Uint8Array.from(atob(data), (each) => each.charCodeAt(0))], name, { type }));
  if (office) for (const each of ["text/plain", "text/html"]) brought.setData(each, "cells of a table");
  const about = { bubbles: true, cancelable: true, clipboardData: brought, dataTransfer: brought };
  const event = kind === "paste" ? new ClipboardEvent(kind, about) : new DragEvent(kind, about);
  return document.querySelector("#message").dispatchEvent(event);
}
"""


@pytest.fixture
def seeing(page: Page, scripted: Scripted) -> Page:
    """The chat, with a model that sees beside the one that does not, which is chosen."""
    scripted.chat.deltas = [chat_service_pb2.ChatDelta(text="A square.")]
    scripted.catalog.others = [model_pb2.Model(id=SEEING, state=model_pb2.MODEL_STATE_READY, capabilities=["vision"])]
    page.reload()
    page.choose("select", "Model", MODEL)
    return page


def picture(width: int = 8, height: int = 6, kind: str = "PNG", *, noise: bool = False) -> bytes:
    file = io.BytesIO()
    drawn = Image.effect_noise((width, height), 8) if noise else Image.new("RGB", (width, height), "red")
    drawn.convert("RGB").save(file, kind)
    return file.getvalue()


def bring(
    page: Page, kind: str, name: str, data: bytes, *, office: bool = False, media_type: str = "image/png"
) -> bool:
    """Pastes or drops a file; returns whether the browser is left to handle it."""
    arguments = json.dumps([kind, name, media_type, base64.b64encode(data).decode(), office])
    return bool(page.evaluate(f"({BRING})(...{arguments})"))


def ask(page: Page, text: str) -> None:
    before = page.evaluate("document.querySelectorAll('.answer').length")
    page.fill("textarea", "Message", text)
    page.press("Enter")
    page.wait(f"document.querySelectorAll('.answer .below').length === {before + 1}")


def sent(parts: Sequence[chat_pb2.ContentPart]) -> list[bytes | str]:
    """Returns a message as sent: the bytes of each picture, and texts."""
    return [
        base64.b64decode(part.image.url.partition(";base64,")[2]) if part.HasField("image") else part.text
        for part in parts
    ]


def test_a_picture_is_sent_kept_and_exported(seeing: Page, scripted: Scripted, tmp_path: Path) -> None:
    page, drawn = seeing, picture()
    file = tmp_path / "square.png"
    file.write_bytes(drawn)
    page.attach(ATTACH, file)
    page.wait_text(f"{MODEL} takes no pictures. Choose a model that does: {SEEING}.")
    page.fill("textarea", "Message", "Which shape?")
    page.press("Enter")
    assert page.evaluate("document.querySelector('.composer .primary').disabled")
    page.reload()
    page.choose("select", "Model", SEEING)
    page.wait("document.querySelector('.files img')?.naturalWidth === 8")
    ask(page, "Which shape?")
    page.wait(f"JSON.stringify({SEEN}) === '[[\"square.png\",8]]'")
    assert scripted.chat.asked[0].model == SEEING
    page.wait_kept("conversations", "kept[0]?.turns[1]?.state === 'done'")
    page.reload()
    page.wait(f"JSON.stringify({SEEN}) === '[[\"square.png\",8]]'")
    for scheme in ("light", "dark"):
        page.colours(scheme)
        assert problems(page) == [], scheme
    ask(page, "And which colour?")
    assert [sent(message.content) for message in scripted.chat.asked[-1].messages] == [
        [drawn, "Which shape?"],
        ["A square."],
        ["And which colour?"],
    ]
    page.choose("select", "Model", MODEL)
    page.wait_text(f"{MODEL} takes no pictures.")

    page.evaluate(
        "window.saved = []; const make = URL.createObjectURL; URL.createObjectURL = (blob) => {"
        " blob.text().then((text) => window.saved.push(text)); return make(blob); }; 1"
    )
    page.click("button", "Export all")
    page.wait("window.saved.length === 1")
    exported = tmp_path / "all.json"
    exported.write_text(page.evaluate("window.saved[0]"))
    page.click("button", "Actions for Which shape?")
    page.click(".entry + .row button", "Delete")
    page.click("button.danger", "Delete Which shape?")
    hostile = tmp_path / "hostile.json"
    hostile.write_text(exported.read_text().replace("data:image/png;base64,", "//elsewhere.example/"))
    page.attach(".conversations input[type=file]", hostile)
    page.wait_text("turns[0].files.url is not a data URL of a picture")
    page.attach(".conversations input[type=file]", exported)
    page.click("a", "Which shape?")
    page.wait(f"JSON.stringify({SEEN}) === '[[\"square.png\",8]]'")


def test_pictures_are_pasted_and_dropped(seeing: Page, scripted: Scripted) -> None:
    page = seeing
    page.choose("select", "Model", SEEING)
    count = "document.querySelectorAll('.files li').length"
    assert bring(page, "paste", "cells.png", picture(), office=True), "the text is pasted"
    brought = (
        ("paste", "small.png", picture(), "image/png"),
        ("drop", "large.png", picture(1600, 4000, noise=True), "image/png"),
        ("drop", "rare.bmp", picture(kind="BMP"), "image/bmp"),
    )
    for number, (kind, name, data, media_type) in enumerate(brought, start=1):
        assert not bring(page, kind, name, data, media_type=media_type)
        page.wait(f"{count} === {number}")
    page.click("button", "Remove small.png")
    ask(page, "Which are these?")
    large, rare, text = sent(scripted.chat.asked[-1].messages[-1].content)
    assert text == "Which are these?"
    for sent_bytes, size in ((large, (819, 2048)), (rare, (8, 6))):
        assert isinstance(sent_bytes, bytes)
        opened = Image.open(io.BytesIO(sent_bytes))
        assert (opened.format, opened.size) == ("JPEG", size)


def test_code_reads_pictures_from_files(seeing: Page, tmp_path: Path) -> None:
    page, drawn = seeing, picture()
    page.choose("select", "Model", SEEING)
    bring(page, "drop", "square.png", drawn)
    page.wait("document.querySelector('.files img')")
    ask(page, "It's $HOME, `which` shape\\?")
    (tmp_path / "picture-1.png").write_bytes(drawn)
    url = f"data:image/png;base64,{base64.b64encode(drawn).decode()}"
    shown = {}
    for language in ("curl", "gRPC", "Python", "Node"):
        page.choose("select", "Copy as", language)
        page.wait(f"document.querySelector('.answer .codeblock figcaption')?.innerText.includes('{language}')")
        shown[language] = page.evaluate("document.querySelector('.answer .codeblock pre').innerText")
    for language, program in {"curl": "curl", "gRPC": "grpcurl"}.items():
        script = f"{program}() {{ cat; }}\n{shown[language]}"
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
        content = json.loads(done.stdout)["messages"][0]["content"]
        seen = content[0]["image"] if language == "gRPC" else content[0]["image_url"]
        assert (seen["url"], content[1]["text"]) == (url, "It's $HOME, `which` shape\\?")
    (call,) = [line for line in shown["Python"].splitlines() if line.startswith("    messages=")]
    made = subprocess.run(
        ["python3", "-c", f"from base64 import b64encode\nimport json\nprint(json.dumps(dict(\n{call}\n)))"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(made.stdout)["messages"][0]["content"][0]["image_url"]["url"] == url
    assert 'readFileSync("picture-1.png", "base64")' in shown["Node"]
