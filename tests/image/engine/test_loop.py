"""The batch loop: how images are batched, the messages that a request gets, and early ends."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from services.image.engine import loop
from services.image.engine.loop import ReturningCallers
from services.image.engine.messages import Finished, Picture, Stepped
from services.worker import loop as worker_loop
from services.worker.messages import Cancel, EngineError, RequestRefused, Stop
from tests.case import case
from tests.image.engine.scripted_images import READY, LoopOfImages, Scripted, asked

BROKEN = EngineError("INTERNAL", "it broke")


def test_a_request_gets_its_images_each_with_its_own_seed_and_then_its_end() -> None:
    session = LoopOfImages(Scripted())
    session.ask(1, count=3)
    session.work(1)
    assert session.pictures(1) == [b"100", b"101", b"102"]
    assert isinstance([message for message in session.sent if not isinstance(message, Stepped)][-1], Finished)
    (finished,) = session.of(Finished)
    assert finished.steps == 12
    assert finished.seconds >= 0
    assert session.counters.running == session.counters.waiting == 0


def test_seeds_wrap_around_after_the_greatest() -> None:
    session = LoopOfImages(Scripted())
    session.ask(1, count=2, seed=2**64 - 1)
    session.work(1)
    assert session.runtime.seeds == [[2**64 - 1, 0]]


def test_requests_that_wait_together_and_agree_are_one_batch() -> None:
    session = LoopOfImages(Scripted())
    for request in (1, 2, 3):
        session.ask(request)
    session.work(1, 2, 3)
    assert session.runtime.seeds == [[100, 200, 300]]
    assert max(stepped.counters.batch for stepped in session.of(Stepped)) == 3


@pytest.mark.parametrize(
    "other",
    [
        {"width": 128},
        {"steps": 5},
        {"guidance": 2.0},
        {"scheduler": "euler"},
        {"negative": "rain"},
        {"image": bytes(64 * 64 * 3)},
        {"image": bytes(64 * 64 * 3), "mask": bytes(64 * 64)},
    ],
    ids="+".join,
)
def test_requests_that_differ_in_anything_but_prompt_and_seed_are_not_computed_together(other: dict) -> None:
    session = LoopOfImages(Scripted())
    session.ask(1)
    session.ask(2, **other)
    session.ask(3)
    session.work(1, 2, 3)
    assert session.runtime.seeds == [[100, 300], [200]]


def test_requests_with_different_strengths_are_not_computed_together() -> None:
    session = LoopOfImages(Scripted())
    image = bytes(64 * 64 * 3)
    session.ask(1)
    session.ask(2)
    session.ask(3, image=image, strength=0.5)
    session.ask(4, image=image, strength=0.6)
    session.work(1, 2, 3, 4)
    assert session.runtime.seeds == [[100, 200], [300], [400]]


def test_a_batch_has_a_bound_and_fewer_large_images_fit_into_it() -> None:
    session = LoopOfImages(Scripted())
    session.ask(1, count=10)
    session.ask(2, count=3, width=128)
    session.work(1, 2)
    assert sorted(map(len, session.runtime.seeds)) == [1, 2, 2, 4, 4]
    assert {parameters.width for parameters, drafts in session.runtime.batches if len(drafts) == 4} == {64}


def test_a_lone_request_does_not_wait_for_company() -> None:
    session = LoopOfImages(Scripted())
    session.ask(1)
    session.turn()
    assert session.pictures(1) == [b"100"]


def test_a_client_with_many_images_gets_no_more_than_one_with_few() -> None:
    session = LoopOfImages(Scripted())
    session.ask(1, client="many", count=10)
    session.ask(2, client="many", count=10)
    session.ask(3, client="few", count=2)
    session.turn()
    assert session.runtime.seeds == [[100, 300, 200, 301]]
    assert session.pictures(3) == [b"300", b"301"]


def test_incompatible_request_is_not_starved_by_compatible_ones() -> None:
    session = LoopOfImages(Scripted())
    session.ask(1, client="many", count=10)
    session.ask(2, client="few", width=128)
    session.turn(2)
    assert session.pictures(2) == [b"200"]


def test_progress_is_sent_after_every_step_if_requested() -> None:
    session = LoopOfImages(Scripted())
    session.ask(1, progress=True)
    session.ask(2)
    session.work(1, 2)
    assert session.progress(1) == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert session.progress(2) == []


def test_progress_is_of_all_images_of_a_request_and_never_falls() -> None:
    session = LoopOfImages(Scripted())
    session.ask(1, progress=True, count=6)
    session.work(1)
    steps = [step for step, _ in session.progress(1)]
    assert steps == sorted(set(steps))
    assert steps[-1] == 4


def test_partials_are_spread_over_the_steps() -> None:
    for partials, steps, reported in [
        (0, 4, []),
        (1, 4, [2]),
        (2, 9, [3, 6]),
        (3, 4, [1, 2, 3]),
        (3, 2, [1]),
        (3, 1, []),
    ]:
        with case(partials=partials, steps=steps, reported=reported):
            session = LoopOfImages(Scripted())
            session.ask(1, partials=partials, steps=steps)
            session.ask(2, steps=steps)
            session.work(1, 2)
            assert [one.pixels for one in session.partials(1)] == [b"100 after %d" % step for step in reported]
            assert [one.partial for one in session.partials(1)] == list(range(len(reported)))
            assert session.partials(2) == []
            assert session.pictures(1) == [b"100"]


def test_every_image_has_its_own_partials() -> None:
    session = LoopOfImages(Scripted())
    session.ask(1, partials=1, count=2)
    session.work(1)
    assert [(one.index, one.partial, one.pixels) for one in session.partials(1)] == [
        (0, 0, b"100 after 2"),
        (1, 0, b"101 after 2"),
    ]


def test_cancelled_request_leaves_the_batch_after_the_running_step() -> None:
    session = LoopOfImages(Scripted())
    session.runtime.between[2] = lambda: session.cancel(1)
    session.ask(1)
    session.ask(2)
    session.work(2)
    assert session.runtime.wanted == [[0, 1], [1], [1], [1]]
    assert session.pictures(1) == []
    assert session.pictures(2) == [b"200"]
    assert {message.request for message in session.of(Finished)} == {2}


def test_batch_without_waiting_callers_ends_at_once() -> None:
    session = LoopOfImages(Scripted())
    session.runtime.between[2] = lambda: (session.cancel(1), session.cancel(2))
    session.ask(1, count=2)
    session.ask(2)
    session.turn()
    assert session.runtime.ended == 1
    assert len(session.runtime.wanted) == 2
    assert session.of(Picture) == session.of(Finished) == []
    assert session.counters.running == session.counters.waiting == 0


def test_request_cancelled_while_waiting_is_never_computed() -> None:
    session = LoopOfImages(Scripted())
    session.ask(1, count=10)
    session.turn()
    session.cancel(1)
    session.ask(2, steps=2)
    session.work(2)
    assert [len(seeds) for seeds in session.runtime.seeds] == [4, 1]


def test_a_request_that_arrives_during_a_batch_is_in_the_next_one() -> None:
    session = LoopOfImages(Scripted())
    session.runtime.between[1] = lambda: session.ask(2) if len(session.runtime.batches) == 1 else None
    session.ask(1)
    session.work(1, 2)
    assert session.runtime.seeds == [[100], [200]]


def test_faulty_request_alone_is_refused_in_a_failed_batch() -> None:
    session = LoopOfImages(Scripted(faults={200: BROKEN}))
    for request in (1, 2, 3):
        session.ask(request)
    session.work(1, 2, 3)
    (refused,) = session.of(RequestRefused)
    assert (refused.request, refused.code, refused.message) == (2, "INTERNAL", "it broke")
    assert session.pictures(1) == [b"100"]
    assert session.pictures(3) == [b"300"]


def test_a_request_at_fault_is_refused_with_all_its_images() -> None:
    session = LoopOfImages(Scripted(faults={101: BROKEN}))
    session.ask(1, count=3)
    session.work(1)
    assert len(session.of(RequestRefused)) == 1
    assert session.of(Finished) == []
    session.ask(2)
    session.work(2)
    assert session.pictures(2) == [b"200"]


def test_out_of_memory_makes_batches_smaller_for_good() -> None:
    session = LoopOfImages(Scripted(most=2))
    session.ask(1, count=4)
    session.work(1)
    session.ask(2, count=4)
    session.work(2)
    assert list(map(len, session.runtime.seeds)) == [4, 2, 2, 2, 2]
    assert session.pictures(1) == [b"100", b"101", b"102", b"103"]


def test_an_image_that_does_not_fit_in_memory_is_refused() -> None:
    session = LoopOfImages(Scripted(most=0))
    session.ask(1, count=2)
    session.work(1)
    assert [refused.code for refused in session.of(RequestRefused)] == ["OUT_OF_MEMORY"]


def test_stop_ends_a_running_batch() -> None:
    session = LoopOfImages(Scripted())
    session.runtime.between[2] = lambda: session.inbox.put(Stop())
    session.ask(1)
    assert not session.loop.turn()
    assert session.runtime.ended == 1


def test_every_step_sends_a_heartbeat_and_idle_time_none() -> None:
    session = LoopOfImages(Scripted(ready=replace(READY, batch_images=1)))
    session.ask(1)
    session.ask(2)
    session.turn()
    counters = [stepped.counters for stepped in session.of(Stepped)]
    assert [one.steps for one in counters if one.batch] == [0, 1, 2, 3, 4]  # the first is the runtime's own heartbeat
    assert {(one.running, one.waiting, one.batch) for one in counters[:-1]} == {(1, 1, 1)}
    assert (counters[-1].running, counters[-1].waiting, counters[-1].batch) == (0, 1, 0)


def test_expired_request_is_never_started_and_a_running_one_ends_at_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    for module in (loop, worker_loop):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    session = LoopOfImages(Scripted())
    session.ask(1, deadline=now - 1)
    session.ask(2, deadline=now + 3600)
    session.work(1, 2)
    (refused,) = session.of(RequestRefused)
    assert (refused.request, refused.code) == (1, "TIMEOUT")
    assert session.runtime.seeds == [[200]]
    assert session.pictures(2) == [b"200"]

    def wait() -> None:
        nonlocal now
        now += 2

    session.runtime.between[2] = wait
    session.ask(3, count=2, deadline=now + 1)
    session.work(3)
    assert session.of(RequestRefused)[-1].request == 3
    assert session.runtime.ended == 1
    assert session.counters.running == session.counters.waiting == 0


def test_phases_of_a_request_are_reported_in_order() -> None:
    session = LoopOfImages(Scripted())
    session.ask(1)
    session.work(1)
    assert phases(session, 1) == ["steps", "decode"]


def test_pictures_that_do_not_fit_into_a_batch_wait_again() -> None:
    session = LoopOfImages(Scripted())
    session.ask(1, count=session.runtime.ready.batch_images + 1)
    session.work(1)
    assert phases(session, 1) == ["steps", "decode", "queue", "steps", "decode"]


def phases(session: LoopOfImages, request: int) -> list[str]:
    found = [phase for stepped in session.of(Stepped) for phase in stepped.phases if phase.request == request]
    assert [phase.at for phase in found] == sorted(phase.at for phase in found)
    return [phase.name for phase in found]


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
    monkeypatch.setattr(loop, "SHARE", 1e9)
    session = LoopOfImages(Scripted())
    session.inbox = session.loop._inbox = Callers()
    return session


def test_returning_clients_share_a_batch_again(session: LoopOfImages) -> None:
    for request in (1, 2, 3):
        session.ask(request)
    session.work(1, 2, 3)
    session.ask(4)
    session.inbox.later = [asked(5), asked(6), asked(7)]
    session.work(4, 5, 6)
    assert session.runtime.seeds == [[100, 200, 300], [400, 500, 600]]
    assert len(session.inbox.later) == 1, "nobody else was waited for"


def test_lone_request_never_waits(session: LoopOfImages) -> None:
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


def test_request_cancelled_during_the_wait_is_not_computed(session: LoopOfImages) -> None:
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
        (lambda both: both.batch_ended(0, LONG), False),
        (lambda both: both.batch_ended(2, LONG), True),
        (lambda both: both.batch_ended(2, 0.0), False),
        (lambda both: (both.batch_ended(2, LONG), both.request_arrived()), True),
        (lambda both: (both.batch_ended(2, LONG), both.request_arrived(), both.request_arrived()), False),
        (lambda both: (both.batch_ended(2, LONG), both.batch_ended(0, LONG)), False),
    ],
    ids=["new", "nobody-left", "two-left", "a-moment-ago", "one-back", "both-back", "another-batch"],
)
def test_which_clients_a_batch_waits_for(happens: Callable[[ReturningCallers], object], waits: bool) -> None:
    both = ReturningCallers()
    happens(both)
    assert (0 < both.seconds <= loop.MOST_SECONDS) == waits
