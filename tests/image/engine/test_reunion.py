"""Callers who ask again as soon as they have their images are batched together; other requests do not wait."""

from __future__ import annotations

import queue
from collections.abc import Callable

import pytest

from services.image.engine import reunion
from services.image.engine.messages import Cancel
from services.image.engine.reunion import Reunion
from tests.image.engine.scripted_images import LoopOfImages, Scripted, asked

LONG = 1e6  # seconds of a batch


class Callers(queue.SimpleQueue):
    """An inbox that delivers a message of `later` only when the loop waits for one."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[object] = []
        self.waited = 0

    def get(self, block: bool = True, timeout: float | None = None) -> object:
        if block and timeout is not None:
            self.waited += 1
            if self.later:
                self.put(self.later.pop(0))
            else:
                raise queue.Empty
        return super().get(block, timeout)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> LoopOfImages:
    """Returns a loop with a raised wait share: its batches take no time, so only the time limit bounds the wait."""
    monkeypatch.setattr(reunion, "SHARE", 1e9)
    session = LoopOfImages(Scripted())
    session.inbox = session.loop._inbox = Callers()
    return session


def test_those_who_come_back_are_a_batch_again(session: LoopOfImages) -> None:
    for request in (1, 2, 3):
        session.ask(request)
    session.work(1, 2, 3)
    session.ask(4)
    session.inbox.later = [asked(5), asked(6), asked(7)]
    session.work(4, 5, 6)
    assert session.runtime.seeds == [[100, 200, 300], [400, 500, 600]]
    assert len(session.inbox.later) == 1, "nobody else was waited for"


def test_who_is_alone_never_waits(session: LoopOfImages) -> None:
    for request in (1, 2, 3):
        session.ask(request)
        session.work(request)
    assert session.inbox.waited == 0


def test_a_full_batch_begins_at_once(session: LoopOfImages) -> None:
    for request in (1, 2, 3, 4):
        session.ask(request)
    session.work(1, 2, 3, 4)
    session.ask(5, count=4)
    session.work(5)
    assert session.inbox.waited == 0


def test_who_is_given_up_while_others_are_waited_for_is_not_computed(session: LoopOfImages) -> None:
    for request in (1, 2):
        session.ask(request)
    session.work(1, 2)
    session.ask(3)
    session.inbox.later = [Cancel(3)]
    session.turn()
    assert session.inbox.waited == 1
    assert len(session.runtime.batches) == 1


@pytest.mark.parametrize(
    ("happens", "waits"),
    [
        (lambda both: None, False),
        (lambda both: both.part(0, LONG), False),
        (lambda both: both.part(2, LONG), True),
        (lambda both: both.part(2, 0.0), False),
        (lambda both: (both.part(2, LONG), both.meet()), True),
        (lambda both: (both.part(2, LONG), both.meet(), both.meet()), False),
        (lambda both: (both.part(2, LONG), both.part(0, LONG)), False),
    ],
    ids=["new", "nobody-left", "two-left", "a-moment-ago", "one-back", "both-back", "another-batch"],
)
def test_for_whom_is_waited(happens: Callable[[Reunion], object], waits: bool) -> None:
    both = Reunion()
    happens(both)
    assert (0 < both.seconds <= reunion.MOST_SECONDS) == waits
