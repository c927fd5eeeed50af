"""A shared browser for the tests of the console, and its tabs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.console.chromium import Browser, Opener, Page, running_chromium
from tests.console.scripted_services import Scripted, scripted_gateway
from tests.stack import Stack


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with running_chromium() as running:
        yield running


@pytest.fixture
def tab(browser: Browser) -> Iterator[Opener]:
    """Opens a view of a stack's console in a new tab: `tab(stack, "chat")`."""
    opened: list[Page] = []

    def open_view(stack: Stack, view: str, **size: int) -> Page:
        page = browser.open(f"http://127.0.0.1:{stack.port}/#/{view}", **size)
        opened.append(page)
        return page

    yield open_view
    for page in opened:
        page.close()


@pytest.fixture(scope="session")
def scripted_services() -> Iterator[Scripted]:
    with scripted_gateway() as running:
        yield running


@pytest.fixture
def scripted(scripted_services: Scripted) -> Scripted:
    """The scripted services in their initial state."""
    scripted_services.reset()
    return scripted_services


@pytest.fixture
def page(browser: Browser, scripted: Scripted) -> Iterator[Page]:
    """The chat of the scripted services; fails if the browser reports an error."""
    opened = browser.open(f"http://127.0.0.1:{scripted.port}/#/chat")
    opened.wait_text("Connected")
    yield opened
    assert opened.complaints() == []
    opened.close()


@pytest.fixture
def view(tab: Opener, stack: Stack) -> Iterator[Callable[[str], Page]]:
    """Opens a view of the shared stack's console; fails if the browser reports an error."""
    opened: list[Page] = []

    def open_view(name: str) -> Page:
        page = tab(stack, name)
        page.wait_text("Connected")
        opened.append(page)
        return page

    yield open_view
    for page in opened:
        assert page.complaints() == []
        origin = f"http://127.0.0.1:{stack.port}/"
        assert [url for url in page.requested() if not url.startswith((origin, "blob:", "data:"))] == []
