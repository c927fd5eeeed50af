"""The recent events of models, with times and numbers."""

from __future__ import annotations

from services.telemetry.figures import MOST, Event, ModelEvents


def test_events_are_numbered_and_have_their_time() -> None:
    times = iter((10.0, 20.0))
    events = ModelEvents(lambda: next(times))
    assert events.after(0) == ()
    events.record("loaded", "m")
    events.record("evicted", "m", "idle")
    first, second = Event(at=10.0, kind="loaded", model="m"), Event(at=20.0, kind="evicted", model="m", reason="idle")
    assert events.after(0) == ((1, first), (2, second))
    assert events.after(1) == ((2, second),)
    assert events.after(2) == ()


def test_latest_of_many_are_kept() -> None:
    events = ModelEvents()
    for number in range(3 * MOST):
        events.record("loaded", str(number))
    kept = events.after(0)
    assert len(kept) == MOST
    assert (kept[-1][0], kept[-1][1].model) == (3 * MOST, str(3 * MOST - 1))
