"""Parallel steps: the loop continues while they run and takes their results when they end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from services.audio.engine.messages import Decoding, Finished
from services.audio.engine.runtime import Decoded, Floats, Step
from services.audio.engine.steps import OVERTAKING, Lanes, Work
from services.worker.messages import Cancel, EngineError, RequestRefused
from tests.audio.engine.scripted_whisper import LoopSession, Scripted, chunk

SECONDS = 20.0  # upper limit of a wait
LIVE = Decoding(language="en", live=True)


class Parallel(Scripted):
    """A runtime with two lanes. A call on a window in `held` signals that it has begun and waits for its release."""

    def __init__(self, *held: int, **extra: object) -> None:
        super().__init__(lanes=2, **extra)  # type: ignore[arg-type]
        self.begun = {name: threading.Event() for name in held}
        self.go = {name: threading.Event() for name in held}

    def encode(self, mels: Floats) -> list[int]:
        names = super().encode(mels)
        self._wait(names)
        return names

    def decode(self, windows: Sequence[int], prompts: Sequence[Sequence[int]], step: Step) -> list[Decoded]:
        self._wait([100 * name for name in windows])
        return super().decode(windows, prompts, step)

    def _wait(self, names: Sequence[int]) -> None:
        for name in set(names) & set(self.go):
            self.begun[name].set()
            assert self.go[name].wait(SECONDS)


def reached(event: threading.Event) -> None:
    assert event.wait(SECONDS)


def turn_until(session: LoopSession, done: Callable[[], object]) -> None:
    """Steps the loop; a step with nothing to start waits for running work to end."""
    for _ in range(100):
        if done():
            return
        session.turn()
    raise AssertionError("that does not come")


def test_two_windows_are_encoded_at_the_same_time() -> None:
    session = LoopSession(Parallel(11, 12))
    session.ask(1, 11)
    session.ask(2, 12)
    session.turn()
    reached(session.runtime.begun[11])
    reached(session.runtime.begun[12])
    for event in session.runtime.go.values():
        event.set()
    session.work(1, 2)
    assert (session.text(1), session.text(2)) == (" w11", " w12")


def test_a_window_is_decoded_while_another_is_encoded() -> None:
    session = LoopSession(Parallel(12))
    session.ask(1, 11)
    session.ask(2, 12)
    turn_until(session, lambda: session.of(Finished))
    reached(session.runtime.begun[12])
    assert session.text(1) == " w11"
    session.runtime.go[12].set()
    session.work(2)


def test_windows_are_shared_out_among_the_lanes() -> None:
    session = LoopSession(Parallel(batch=8))
    for request in range(1, 5):
        session.ask(request, 10 + request)
    session.work(1, 2, 3, 4)
    assert sorted(name for batch in session.runtime.decoded for name in batch) == [11, 12, 13, 14]
    assert max(map(len, session.runtime.decoded)) <= 2


def test_cancelled_request_sends_no_result() -> None:
    session = LoopSession(Parallel(11, 1200))
    session.ask(1, 11)
    session.ask(2, 12)
    session.turn()
    session.turn()  # the second is encoded by now; its decoding begins
    reached(session.runtime.begun[11])
    reached(session.runtime.begun[1200])
    session.put(Cancel(1), Cancel(2))
    session.ask(3, 13)
    for event in session.runtime.go.values():
        event.set()
    session.work(3)
    turn_until(session, lambda: not session.loop._lanes.under_way)
    assert session.text(1) == session.text(2) == ""
    assert [11] not in session.runtime.decoded
    assert [message.request for message in session.of(Finished)] == [3]


def test_partial_after_its_final_is_not_sent() -> None:
    session = LoopSession(Parallel(30))
    session.open(1, LIVE)
    session.put(chunk(1, 0, 30, partial=True))
    session.turn()
    reached(session.runtime.begun[30])
    session.put(chunk(1, 0, 31))
    turn_until(session, lambda: session.text(1))
    session.runtime.go[30].set()
    turn_until(session, lambda: not session.loop._lanes.under_way)
    assert session.partials(1) == []
    assert session.text(1) == " w31"


def test_failing_lane_refuses_and_the_other_continues() -> None:
    session = LoopSession(Parallel())
    session.runtime.faults[11] = EngineError("INTERNAL", "no")
    session.ask(1, 11)
    session.ask(2, 12)
    session.work(2)
    turn_until(session, lambda: session.of(RequestRefused))
    assert [one.request for one in session.of(RequestRefused)] == [1]
    assert session.text(2) == " w12"


def test_a_defect_in_a_lane_ends_the_loop() -> None:
    session = LoopSession(Parallel())

    def broken(mels: Floats) -> list[int]:
        raise ZeroDivisionError(str(np.shape(mels)))

    session.runtime.encode = broken  # type: ignore[method-assign]
    session.ask(1, 11)
    with pytest.raises(ZeroDivisionError):
        session.work(1)


def test_a_step_that_hangs_is_not_overtaken_for_ever() -> None:
    """Otherwise the watchdog of the service would never see that the step hangs."""
    session = LoopSession(Parallel(11))
    session.ask(1, 11)
    session.ask(2, *range(200, 200 + 2 * OVERTAKING), client="b")
    turn_until(session, lambda: not session.loop._lanes.free and len(session.loop._lanes.under_way) == 1)
    assert session.counters.steps == OVERTAKING
    assert not session.of(Finished)
    session.runtime.go[11].set()
    session.work(1, 2)


def test_steps_of_one_lane_are_computed_where_they_are_begun() -> None:
    ended: list[Work] = []
    lanes = Lanes(1, ended.append)
    lanes.start(Work(threading.current_thread, lambda _: None, 1))
    assert lanes.take(ended[0]) is threading.current_thread()
    assert lanes.free
