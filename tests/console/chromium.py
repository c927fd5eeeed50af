"""A headless Chromium, driven over the DevTools protocol through a pipe: no port, no driver, no package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_SECONDS = 60
CALL_SECONDS = 60
WAIT_SECONDS = 60
POLL_SECONDS = 0.05
MOST_TABS = 200
ARGUMENTS = (
    "--no-sandbox",  # tests run as root in containers; the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--mute-audio",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--remote-debugging-pipe",
)
# Finds an element in the page, by selector and by accessible name.
FINDER = """
(selector, name) => {
  const named = (element) => [
    element.getAttribute("aria-label"),
    ...[...(element.labels ?? [])].map((label) => label.textContent),
    element.textContent,
    element.placeholder,
  ].filter(Boolean).map((text) => text.trim().replace(/\\s+/g, " "));
  const seen = (element) => element.checkVisibility();
  const all = [...document.querySelectorAll(selector)].filter(seen);
  return all.find((element) => !name || named(element).includes(name))
    ?? all.find((element) => named(element).some((text) => text.startsWith(name))) ?? null;
}
"""
# Waits until an element no longer moves, such as below an image that is being loaded, and returns its centre.
STABLE = """
async (find) => {
  let box, last;
  do {
    last = box;
    find().scrollIntoView({ block: "center", behavior: "instant" });
    await new Promise(requestAnimationFrame);
    box = find().getBoundingClientRect();
  } while (last?.x !== box.x || last.y !== box.y || [...document.images].some((image) => !image.complete));
  return [box.x + box.width / 2, box.y + box.height / 2];
}
"""
# Waits until the records in a store of the page's IndexedDB meet a condition.
KEPT = """
async (store, condition) => {
  const done = (request) => new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  const database = await done(indexedDB.open("allm"));
  while (!condition(await done(database.transaction(store).objectStore(store).getAll()))) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  database.close();
}
"""
# Each key with its code and the text that it types.
KEYS = {
    "ArrowRight": ("ArrowRight", 39, ""),
    "Enter": ("Enter", 13, "\r"),
    "Escape": ("Escape", 27, ""),
    "Home": ("Home", 36, ""),
    "Space": (" ", 32, " "),
    "Tab": ("Tab", 9, ""),
}


class PageError(AssertionError):
    """The page does not meet a test's expectation."""


class Browser:
    """A running Chromium."""

    def __init__(self, process: subprocess.Popen[bytes], to_browser: int, from_browser: int) -> None:
        self.process = process
        self._to = to_browser
        self._from = from_browser
        self._held = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Sends a command of the protocol and returns its answer; keeps the events that arrive meanwhile."""
        wanted = self.send(method, session, params)
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            answer = self._read(deadline, method)
            if answer.get("id") != wanted:
                self.events.append(answer)
            elif "error" in answer:
                raise PageError(f"{method}: {answer['error']['message']}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def send(self, method: str, session: str, params: dict[str, Any]) -> int:
        """Sends a command and returns its number; nobody waits for its answer."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        return self._last

    def _read(self, deadline: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise PageError(f"{method}: Chromium does not answer")
            part = os.read(self._from, 1 << 20)
            if not part:
                raise PageError(f"{method}: Chromium has ended with {self.process.poll()}")
            self._held += part
        message, _, self._held = self._held.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed

    def open(self, url: str, width: int = 1280, height: int = 900, beside: Page | None = None) -> Page:
        """Opens `url` in a new tab: isolated, or of the same profile as `beside`, which closes both."""
        context = beside.context if beside else self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, context)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.go(url)
        return page


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser = browser
        self._session = session
        self.context = context

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def go(self, url: str) -> None:
        failed = self.call("Page.navigate", url=url).get("errorText")
        if failed:
            raise PageError(f"{url}: {failed}")
        self.wait("document.readyState === 'complete'")

    def reload(self) -> None:
        """Reloads the page."""
        self.evaluate("window.old = true")
        self.call("Page.reload")
        self.wait("!window.old && document.readyState === 'complete'")

    def close(self) -> None:
        self._browser.call("Target.disposeBrowserContext", browserContextId=self.context)

    def crash(self) -> None:
        """Crashes the tab's process: no event of the page runs any more."""
        self._browser.send("Page.crash", self._session, {})

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def colours(self, scheme: str) -> None:
        """Emulates the system's colour scheme, `light` or `dark`."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def evaluate(self, expression: str) -> Any:
        """Evaluates an expression in the page; awaits promises."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise PageError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = WAIT_SECONDS) -> None:
        """Waits until an expression is true in the page."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({expression})"):
            if time.monotonic() > deadline:
                raise PageError(f"{expression} has not come true; the page says:\n{self.text()}")
            time.sleep(POLL_SECONDS)

    def wait_text(self, text: str, seconds: float = WAIT_SECONDS) -> None:
        """Waits until the page shows a text."""
        self.wait(f"document.body.innerText.includes({json.dumps(text)})", seconds)

    def wait_kept(self, store: str, condition: str) -> None:
        """Waits until the records in a store of the page's database meet a condition on `kept`."""
        self.evaluate(f"({KEPT})({json.dumps(store)}, (kept) => {condition})")

    def tab_to(self, selector: str, name: str = "") -> None:
        """Presses Tab until an element is focused."""
        found = f"({FINDER})({json.dumps(selector)}, {json.dumps(name)})"
        self.wait(found)
        for _ in range(MOST_TABS):
            if self.evaluate(f"document.activeElement === {found}"):
                return
            self.press("Tab")
        raise PageError(f"{MOST_TABS} presses of Tab do not reach {name or selector}")

    def pick(self, file: Path) -> None:
        """Presses Enter, and selects a file in the dialog that this opens."""
        self.call("Page.setInterceptFileChooserDialog", enabled=True)
        known = len(self._browser.events)
        self.press("Enter")
        deadline = time.monotonic() + WAIT_SECONDS
        while not (opened := self._opened_dialogs(known)):
            assert time.monotonic() < deadline, "no dialog for a file opens"
            time.sleep(POLL_SECONDS)
        self.call("DOM.setFileInputFiles", backendNodeId=opened[0], files=[str(file)])

    def _opened_dialogs(self, since: int) -> list[int]:
        self.evaluate("1")  # earlier events have been read then
        return [
            event["params"]["backendNodeId"]
            for event in self._browser.events[since:]
            if event.get("sessionId") == self._session and event["method"] == "Page.fileChooserOpened"
        ]

    def text(self) -> str:
        """Returns all visible text."""
        return str(self.evaluate("document.body.innerText"))

    def click(self, selector: str, name: str = "") -> None:
        """Waits for an element that can be used and no longer moves, and clicks its centre."""
        found = f"({FINDER})({json.dumps(selector)}, {json.dumps(name)})"
        self.wait(f"(() => {{ const found = {found}; return found && !found.disabled; }})()")
        x, y = self.evaluate(f"({STABLE})(() => {found})")
        self.mouse("mousePressed", x, y)
        self.mouse("mouseReleased", x, y)

    def unfold(self, name: str) -> None:
        """Opens the part of the page with this summary, unless it is open."""
        found = f"({FINDER})('summary', {json.dumps(name)})"
        self.wait(f"Boolean({found})")
        self.evaluate(f"{found}.parentElement.open = true")

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Sends one mouse event, with the left button."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def fill(self, selector: str, name: str, text: str) -> None:
        """Types a text into a field, in place of its content."""
        found = f"({FINDER})({json.dumps(selector)}, {json.dumps(name)})"
        self.wait(f"Boolean({found})")
        self.evaluate(f"(() => {{ const found = {found}; found.focus(); found.select(); }})()")
        self.call("Input.insertText", text=text)
        self.wait(f"{found}.value === {json.dumps(text)}")

    def choose(self, selector: str, name: str, value: str) -> None:
        """Selects a value of a list."""
        found = f"({FINDER})({json.dumps(selector)}, {json.dumps(name)})"
        self.wait(f"[...({found}?.options ?? [])].some((option) => option.value === {json.dumps(value)})")
        self.evaluate(
            f"(() => {{ const found = {found}; found.value = {json.dumps(value)};"
            " found.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def attach(self, selector: str, file: Path) -> None:
        """Attaches a file to a file input."""
        document = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=document, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def press(self, key: str) -> None:
        """Presses and releases a key."""
        name, code, text = KEYS[key]
        about = {"key": name, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def screenshot(self) -> bytes:
        """Returns a screenshot as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def complaints(self) -> list[str]:
        """Lists the errors of this tab: exceptions, refused resources, violations of the content security policy."""
        self.evaluate("1")  # earlier events have been read then
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                details = event["params"]["exceptionDetails"]
                found.append(details.get("exception", {}).get("description") or details["text"])
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        return found

    def requested(self) -> list[str]:
        """Returns the addresses of all requests of this tab."""
        self.evaluate("1")
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event["method"] == "Network.requestWillBeSent"
        ]


Opener = Callable[..., Page]  # opens a view of a stack: `tab(stack, "chat")`


@contextmanager
def running_chromium(*arguments: str) -> Iterator[Browser]:
    """Runs Debian's Chromium without its windows, with a separate profile, until the block ends.

    The whole browser takes four times the processor time for a tab, and computes while it is idle.
    """
    program = shutil.which("chromium-headless-shell")
    assert program, "chromium-headless-shell is missing: make test-all installs it"
    read_commands, write_commands = os.pipe()
    read_answers, write_answers = os.pipe()
    # The protocol uses fixed file descriptors.
    script = f'exec "$@" 3<&{read_commands} 4>&{write_answers}'
    with tempfile.TemporaryDirectory(prefix="allm-chromium-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            ["bash", "-c", script, "chromium", program, *ARGUMENTS, *arguments, f"--user-data-dir={profile}"],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        browser = Browser(process, write_commands, read_answers)
        try:
            browser.call("Browser.getVersion")
            yield browser
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(write_commands)
            os.close(read_answers)
