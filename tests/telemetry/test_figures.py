"""The recent events and latencies of models, with times and numbers."""

from __future__ import annotations

from services.telemetry.figures import LATENCY_SECONDS, MOST_EVENTS, Event, Latency, ModelEvents, ModelLatencies


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
    for number in range(3 * MOST_EVENTS):
        events.record("loaded", str(number))
    kept = events.after(0)
    assert len(kept) == MOST_EVENTS
    assert (kept[-1][0], kept[-1][1].model) == (3 * MOST_EVENTS, str(3 * MOST_EVENTS - 1))


def test_latencies_have_their_age_and_only_those_of_the_last_minute_are_reported() -> None:
    now = 100.0
    latencies = ModelLatencies(lambda: now)
    latencies.record("first_output", "m", 0.25)
    now += LATENCY_SECONDS
    latencies.record("request", "n", 3.0)
    old = Latency(kind="first_output", model="m", seconds=0.25, age=LATENCY_SECONDS)
    new = Latency(kind="request", model="n", seconds=3.0)
    assert latencies.after(0) == ((1, old), (2, new))
    assert latencies.after(1) == ((2, new),)
    assert latencies.after(2) == latencies.after(5) == ()
    now += 1
    assert [number for number, _ in latencies.after(0)] == [2]
