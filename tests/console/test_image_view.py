"""Images in a real browser: steps, previews, the gallery, and a painted mask."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.console.axe import problems
from tests.console.chromium import Opener, Page
from tests.pictures.picture_files import png_header
from tests.runtime_counters import Runtime
from tests.stack import IMAGE_MODEL, Stack

Open = Callable[[str], Page]
CHANGED = 40  # of 255: smaller differences of colour count as equal
PROMPT = "a red circle on a blue background"
MANY = 150  # enough steps to take seconds
LOAD_SECONDS = 150  # on a busy machine torch alone takes half a minute
DRAWN = "document.querySelectorAll('.gallery li img').length"
# Every preview ever shown, also those that have disappeared when a test checks.
WATCH = """
window.previews = new Set(); window.steps = new Set();
new MutationObserver(() => {
  for (const each of document.querySelectorAll('[data-preview]')) window.previews.add(each.dataset.preview);
  const step = document.querySelector('.drawing [role=status]')?.innerText;
  if (step) window.steps.add(step);
}).observe(document.body, {subtree: true, childList: true, attributes: true, characterData: true}); 1
"""
# The mean colour of a tenth of an image, as [red, green, blue].
COLOUR = """
(async (image, x, y) => {
  await image.decode();
  const canvas = document.createElement('canvas'); canvas.width = canvas.height = 1;
  const pen = canvas.getContext('2d');
  const [w, h] = [image.naturalWidth, image.naturalHeight];
  pen.drawImage(image, w * x, h * y, w * 0.1, h * 0.1, 0, 0, 1, 1);
  return [...pen.getImageData(0, 0, 1, 1).data.slice(0, 3)];
})
"""

# The number of painted pixels of the mask.
PAINTED = """
(() => {
  const canvas = document.querySelector(".layers canvas");
  return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
    .filter((value, at) => at % 4 === 3 && value > 0).length;
})()
"""
# Stores copies of the only image, each newer than the last.
COPIES = """
async (count) => {
  const done = (request) => new Promise((resolve) => { request.onsuccess = () => resolve(request.result); });
  const pictures = (await done(indexedDB.open("allm"))).transaction("pictures", "readwrite").objectStore("pictures");
  const [first] = await done(pictures.getAll());
  for (let at = 1; at <= count; at += 1) {
    pictures.put({ ...first, id: `copy-${at}`, at: first.at + at, prompt: "a copy" });
  }
  await new Promise((resolve) => { pictures.transaction.oncomplete = resolve; });
}
"""


def colour(page: Page, picture: int, x: float, y: float) -> list[int]:
    """Returns the colour at a point, in fractions of width and height; image 0 is the newest."""
    found: list[int] = page.evaluate(f"{COLOUR}(document.querySelectorAll('.gallery li img')[{picture}], {x}, {y})")
    return found


def apart(one: list[int], other: list[int]) -> int:
    return max(abs(first - second) for first, second in zip(one, other, strict=True))


def draw(page: Page, prompt: str, **settings: str) -> None:
    for name, value in {"Seed": "7", **settings}.items():
        page.fill("input", name, value)
    page.fill("textarea", "Prompt", prompt)
    page.click("button", "Generate")


def wait_drawn(page: Page, count: int) -> None:
    """Waits until the gallery has this many images; the first test also waits for torch."""
    page.wait(f"{DRAWN} === {count}", LOAD_SECONDS)


def open_mask(page: Page) -> None:
    """Opens the newest image of the gallery for a mask."""
    page.click(".gallery button", "Edit")
    page.wait("document.querySelector('.layers canvas')?.width === 64")


def paint_by_keys(page: Page) -> None:
    page.evaluate("document.querySelector('.layers canvas').focus()")
    page.press("ArrowRight")
    page.press("Space")
    page.wait_text("Only the painted area is redrawn")


@pytest.mark.slow
def test_a_picture_appears_after_its_previews(view: Open) -> None:
    page = view("image")
    page.evaluate(WATCH)
    draw(page, PROMPT)
    wait_drawn(page, 1)
    assert page.evaluate("window.previews.size") >= 1
    assert any(step.startswith("Step ") for step in page.evaluate("[...window.steps]"))
    assert page.evaluate("document.querySelector('.gallery img').alt") == PROMPT
    assert "seed 7" in page.evaluate("document.querySelector('.gallery li').innerText")
    red, green, blue = colour(page, 0, 0.45, 0.45)
    assert red > blue
    assert red > green


def test_painted_area_is_redrawn(view: Open) -> None:
    page = view("image")
    draw(page, PROMPT)
    wait_drawn(page, 1)
    open_mask(page)
    page.evaluate("document.querySelector('.layers canvas').scrollIntoView({block: 'center'})")
    left, top, width, height = page.evaluate(
        "(() => { const box = document.querySelector('.layers canvas').getBoundingClientRect();"
        " return [box.x, box.y, box.width, box.height]; })()"
    )
    page.mouse("mousePressed", left + width * 0.3, top + height * 0.5)
    page.mouse("mouseMoved", left + width * 0.7, top + height * 0.5)
    page.mouse("mouseReleased", left + width * 0.7, top + height * 0.5)
    page.wait_text("Only the painted area is redrawn")
    page.fill("textarea", "Prompt", "a green square on a blue background")
    page.fill("input", "Strength", "1")
    page.evaluate(WATCH)
    page.click("button", "Edit image")
    wait_drawn(page, 2)
    assert page.evaluate("window.previews.size") >= 1
    assert any(step.startswith("Step ") for step in page.evaluate("[...window.steps]"))
    assert apart(colour(page, 0, 0.45, 0.45), colour(page, 1, 0.45, 0.45)) > CHANGED
    assert apart(colour(page, 0, 0.0, 0.0), colour(page, 1, 0.0, 0.0)) < CHANGED


def test_a_mask_can_be_painted_by_keys(view: Open) -> None:
    page = view("image")
    draw(page, PROMPT, Steps="2")
    wait_drawn(page, 1)
    open_mask(page)
    paint_by_keys(page)


def test_stopping_frees_the_model(view: Open, stack: Stack) -> None:
    runtime = Runtime(stack, "image", IMAGE_MODEL)
    page = view("image")
    draw(page, PROMPT, Steps="2")
    wait_drawn(page, 1)
    open_mask(page)
    paint_by_keys(page)
    runtime.wait_until(lambda: runtime.idle)
    before = runtime.steps
    # Of this size four are drawn together: three batches, each with all steps.
    large = {"Width": "128", "Height": "128", "Steps": str(MANY), "Images": "10", "Strength": "1"}
    for name, value in large.items():
        page.fill("input", name, value)
    page.click("button", "Edit image")
    page.wait("document.querySelector('.drawing [role=status]')?.innerText.startsWith('Step ')")
    page.click("button", "Stop")
    page.wait_text("Stopped.")
    runtime.wait_until(lambda: runtime.idle)
    assert 0 < runtime.steps - before < 2 * MANY
    # The earlier image stays, and the next request works.
    assert page.evaluate(DRAWN) == 1
    page.fill("input", "Steps", "2")
    page.fill("input", "Images", "1")
    page.click("button", "Edit image")
    wait_drawn(page, 2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"Steps": "1000"}, "steps"), ({"Width": "63", "Height": "64"}, "width")],
)
def test_model_limits_are_explained_in_a_sentence(view: Open, settings: dict[str, str], said: str) -> None:
    page = view("image")
    draw(page, PROMPT, **settings)
    page.wait("document.querySelector('.note.bad')")
    sentence = page.evaluate("document.querySelector('.note.bad p').innerText")
    assert said in sentence.lower()
    assert sentence.endswith(".")


def test_oversized_image_error_names_the_limit(tab: Opener, stack: Stack, tmp_path: Path) -> None:
    """The gateway stops reading such a request, and browsers report only that the connection is gone."""
    large = tmp_path / "large.png"
    large.write_bytes(png_header(64, 64) + bytes(33 * 1024 * 1024))
    page = tab(stack, "image")
    page.click("summary", "Edit an image")
    page.attach("input[type=file]", large)
    page.fill("textarea", "Prompt", PROMPT)
    page.click("button", "Edit image")
    page.wait("document.querySelector('.drawing .note.bad')")
    assert "ALLM_MAX_BODY_BYTES" in page.evaluate("document.querySelector('.drawing .note.bad').innerText")


def test_form_errors_are_shown_before_sending_and_move_nothing(view: Open) -> None:
    page = view("image")
    page.fill("textarea", "Prompt", PROMPT)
    place = "document.querySelector('button[type=submit]').getBoundingClientRect().top"
    before = page.evaluate(place)
    page.fill("input", "Width", "64")
    page.wait_text("Enter both width and height, or neither.")
    assert page.evaluate("document.querySelector('button[type=submit]').disabled")
    page.fill("input", "Height", "64")
    page.fill("input", "Steps", "0")
    page.wait_text("Steps must be a whole number from 1 to 1000.")
    assert page.evaluate("document.querySelectorAll('input[aria-invalid]').length") == 1
    assert page.evaluate("document.querySelector('button[type=submit]').disabled")
    assert page.evaluate(place) == before


def test_a_file_that_is_no_image_is_explained(view: Open, tmp_path: Path) -> None:
    page = view("image")
    wrong = tmp_path / "letter.png"
    wrong.write_text("Dear reader, this is no image.")
    page.click("summary", "Edit an image")
    page.attach("input[type=file]", wrong)
    page.wait_text("The browser cannot read this file as an image.")
    page.click("button", "Generate from text only")
    page.wait("!document.querySelector('.editing')")


def test_a_reload_keeps_images_and_the_form(view: Open) -> None:
    page = view("image")
    draw(page, PROMPT, Steps="2")
    wait_drawn(page, 1)
    before = colour(page, 0, 0.45, 0.45)
    page.wait_kept("pictures", "kept.length === 1")
    page.reload()
    wait_drawn(page, 1)
    assert colour(page, 0, 0.45, 0.45) == before
    assert "seed 7" in page.evaluate("document.querySelector('.gallery li').innerText")
    assert page.evaluate("document.querySelector('aside textarea').value") == PROMPT
    page.wait_text("This browser keeps 1 image")
    # The image to edit and its mask.
    open_mask(page)
    paint_by_keys(page)
    painted = page.evaluate(PAINTED)
    assert painted > 0
    page.wait_kept("drafts", "kept[0]?.mask")
    page.reload()
    page.wait_text("Only the painted area is redrawn")
    page.wait(f"{PAINTED} === {painted}")
    page.click("button", "Generate from text only")
    page.click("button", "Delete all images")
    page.wait_text("Delete all images in this browser?")
    page.click("button.danger")
    wait_drawn(page, 0)
    page.reload()
    page.wait_text(f"Generate images with {IMAGE_MODEL}")
    page.wait_kept("pictures", "kept.length === 0")
    assert page.evaluate(DRAWN) == 0


def test_beyond_the_limit_the_oldest_image_is_deleted(view: Open) -> None:
    page = view("image")
    draw(page, "the oldest", Steps="2")
    wait_drawn(page, 1)
    page.wait_kept("pictures", "kept.length === 1")
    page.evaluate(f"({COPIES})(499)")
    page.reload()
    wait_drawn(page, 500)
    draw(page, PROMPT, Steps="2")
    page.wait_text(PROMPT)
    page.wait_kept("pictures", f"kept.length === 500 && kept.some((each) => each.prompt === {PROMPT!r})")
    page.wait_kept("pictures", "!kept.some((each) => each.prompt === 'the oldest')")
    wait_drawn(page, 500)
    assert "500 images" in page.evaluate("document.querySelector('.kept').innerText")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_images_are_made_by_keys_alone(tab: Opener, stack: Stack, width: int, scheme: str) -> None:
    page = tab(stack, "image", width=width)
    page.colours(scheme)
    page.wait_text(f"Generate images with {IMAGE_MODEL}")
    assert problems(page) == [], "empty"
    for name, text in {"Prompt": PROMPT, "Steps": "2", "Seed": "7"}.items():
        page.tab_to("aside input, aside textarea", name)
        page.call("Input.insertText", text=text)
    page.tab_to("button", "Generate")
    page.press("Enter")
    wait_drawn(page, 1)
    page.tab_to(".gallery button", "Edit")
    page.press("Enter")
    page.wait("document.querySelector('.layers canvas')?.width === 64")
    page.tab_to(".layers canvas")
    page.press("Space")
    page.wait_text("Only the painted area is redrawn")
    page.tab_to("button", "Edit image")
    page.press("Enter")
    wait_drawn(page, 2)
    assert problems(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.tab_to("button", "Delete all images")
    page.press("Enter")
    page.tab_to("button.danger")
    page.press("Enter")
    wait_drawn(page, 0)
