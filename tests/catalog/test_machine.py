"""Samples from replicas' reports: rates, restarts, added and removed replicas, events."""

from __future__ import annotations

import random

import pytest

from services.catalog.machine import (
    MAX_EVENTS,
    MOST_TIMES,
    OLDEST_EVENT,
    Machine,
    Percentiles,
    RollingWindow,
    Sample,
    Speed,
    Traffic,
    gains,
    merged,
    percentiles,
)
from services.telemetry.figures import Event
from tests.catalog.catalog_service import Clock
from tests.catalog.reported_figures import GIB, device, figures, host, latencies, of_model

NOW = 1_000_000.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def machine(clock: Clock) -> Machine:
    return Machine(clock, lambda: NOW + clock.now)


def text(sample: Sample) -> Traffic:
    (traffic,) = sample.traffic
    assert traffic.modality == "text"
    return traffic


def event(at: float = NOW, model: str = "m") -> Event:
    return Event(at=at, kind="loaded", model=model)


def test_without_replicas_there_are_no_figures(machine: Machine) -> None:
    assert machine.sample() == Sample(at=NOW, hosts=(), traffic=(), events=())


def test_counts_before_the_first_report_are_ignored(machine: Machine, clock: Clock) -> None:
    """After a restart of the catalog, the services have been counting for days."""
    machine.take("text-1", "text", figures(86_400, generated_tokens=10**9))
    assert (text(machine.sample()).rates, text(machine.sample()).times) == ({}, {})
    clock.now += 2
    machine.take("text-1", "text", figures(86_402, generated_tokens=10**9 + 40))
    found = text(machine.sample())
    assert found.rates == {"generated_tokens": pytest.approx(20)}


def test_times_before_the_first_report_count_for_their_minute(machine: Machine, clock: Clock) -> None:
    """After a restart of the catalog the services report the last minute again, and once more if a report failed."""
    for _ in range(2):
        machine.take("text-1", "text", figures(86_400, latencies=latencies(0.5, age=50.0) + latencies(2.0, start=2)))
    assert text(machine.sample()).times == {"request": Percentiles(0.5, 2.0, 2.0, 2)}
    clock.now += 11
    assert text(machine.sample()).times == {"request": Percentiles(2.0, 2.0, 2.0, 1)}


def test_each_model_has_figures_of_its_own(machine: Machine, clock: Clock) -> None:
    for uptime, tokens in ((10, 0), (12, 20)):
        busy, idle = of_model(requests=tokens, generated_tokens=tokens, running=1), of_model(requests=7)
        for replica in ("text-1", "text-2"):
            times = latencies(0.25, model="busy") + latencies(4.0, model="other", start=2)
            reported = figures(
                uptime, requests=tokens + 7, running=1, models={"busy": busy, "idle": idle}, latencies=times
            )
            machine.take(replica, "text", reported)
        clock.now += 2
    found = text(machine.sample())
    assert list(found.models) == ["busy", "other"], "those with a request within the last minute, by id"
    own = found.models["busy"]
    assert (own.running, own.waiting) == (2, 0)
    assert own.rates == {"requests": pytest.approx(40 / 4), "generated_tokens": pytest.approx(20)}
    assert own.times == {"request": Percentiles(0.25, 0.25, 0.25, 2)}
    assert found.models["other"].times == {"request": Percentiles(4.0, 4.0, 4.0, 2)}
    assert found.times == {"request": Percentiles(0.25, 4.0, 4.0, 4)}
    clock.now += 61
    assert list(text(machine.sample()).models) == ["busy"], "it still computes a request"
    for replica in ("text-1", "text-2"):
        machine.take(replica, "text", figures(80, models={"busy": of_model(requests=20)}))
    assert text(machine.sample()).models == {}
    assert len(machine._windows["text"]) == 1, "only that of all models together"


def test_a_models_first_request_counts(machine: Machine, clock: Clock) -> None:
    machine.take("text-1", "text", figures(10))
    clock.now += 20
    machine.take("text-1", "text", figures(30, requests=1, models={"m": of_model(requests=1)}))
    found = text(machine.sample())
    assert found.models["m"].rates["requests"] == found.rates["requests"] == pytest.approx(1 / 20)


def test_replicas_of_a_modality_are_summed(machine: Machine, clock: Clock) -> None:
    for uptime, tokens, running in ((10, 0, 1), (12, 20, 3)):
        for replica in ("text-1", "text-2"):
            reported = figures(
                uptime, generated_tokens=tokens, running=running, waiting=2, latencies=latencies(*[1.0] * tokens)
            )
            machine.take(replica, "text", reported)
        machine.take("image-1", "image", figures(uptime, images=tokens, running=1))
        clock.now += 2
    words, pictures = machine.sample().traffic
    assert (words.modality, words.replicas, words.running, words.waiting) == ("text", 2, 6, 4)
    assert words.rates == {"generated_tokens": pytest.approx(20)}
    assert words.times["request"].count == 40
    assert (pictures.modality, pictures.running, pictures.times) == ("image", 1, {})
    assert pictures.rates == {"images": pytest.approx(5)}


def test_a_replica_that_left_stops_counting(machine: Machine, clock: Clock) -> None:
    for uptime in (10, 12):
        machine.take("text-1", "text", figures(uptime, generated_tokens=uptime, running=1, host=host("a")))
        machine.take("text-2", "text", figures(uptime, generated_tokens=uptime, running=1, host=host("b")))
        clock.now += 2
    machine.drop("text-2")
    sample = machine.sample()
    assert (text(sample).replicas, text(sample).running) == (1, 1)
    assert text(sample).rates == {"generated_tokens": pytest.approx(1)}
    assert [each.id for each in sample.hosts] == ["a"]
    assert sample.events == ()
    machine.drop("text-1", lost=True)
    sample = machine.sample()
    assert (sample.traffic, sample.hosts) == ((), ())
    assert sample.events == (Event(at=NOW + clock.now, kind="replica_lost", replica="text-1"),)


def test_restarted_process_counts_from_0(machine: Machine, clock: Clock) -> None:
    machine.take("text-1", "text", figures(1000, generated_tokens=5000, latencies=latencies(9.0, age=61)))
    clock.now += 5
    machine.take("text-1", "text", figures(3, began=2, generated_tokens=30, latencies=latencies(1.0, 1.0)))
    found = text(machine.sample())
    assert found.rates == {}, "of the new process there is one report so far"
    assert found.times["request"].count == 2, "the new process numbers anew"
    clock.now += 2
    machine.take("text-1", "text", figures(5, began=2, generated_tokens=50, latencies=latencies(1.0, start=3)))
    found = text(machine.sample())
    assert found.rates == {"generated_tokens": pytest.approx(10)}
    assert found.times["request"].count == 3


def test_two_processes_of_one_name_make_no_wild_figures(machine: Machine, clock: Clock) -> None:
    """Two processes share a name by misconfiguration; neither has started since the other's report."""
    for _ in range(5):
        for began in (1, 2):
            machine.take("text-1", "text", figures(1000 + clock.now, began, generated_tokens=5000))
            clock.now += 1
    found = text(machine.sample())
    assert found.times == {}
    assert found.rates.get("generated_tokens", 0) == 0


def test_name_with_a_new_modality_starts_from_zero(machine: Machine, clock: Clock) -> None:
    machine.take("one", "text", figures(10, generated_tokens=1))
    machine.take("one", "image", figures(10, images=50))
    (traffic,) = machine.sample().traffic
    assert (traffic.modality, traffic.replicas, traffic.rates) == ("image", 1, {"images": 0.0})


def test_events_are_sent_once_in_order_and_with_their_replica(machine: Machine) -> None:
    machine.take("b", "text", figures(1, events=((1, event(NOW - 2)),)))
    machine.take("a", "text", figures(1, events=((1, event(NOW - 3)), (2, event(NOW - 1)))))
    assert [(each.replica, each.at) for each in machine.sample().events] == [
        ("a", NOW - 3),
        ("b", NOW - 2),
        ("a", NOW - 1),
    ]
    assert machine.sample().events == ()
    # The replica missed the acknowledgement and sends the event again.
    machine.take("a", "text", figures(2, events=((2, event(NOW - 1)), (3, event(NOW, "n")))))
    assert [(each.replica, each.model) for each in machine.sample().events] == [("a", "n")]
    machine.take("a", "text", figures(1, began=2, events=((1, event(NOW, "o")),)))
    assert [each.model for each in machine.sample().events] == ["o"], "a new process numbers anew"


def test_old_events_are_no_news_and_a_flood_is_cut(machine: Machine) -> None:
    machine.take("a", "text", figures(1, events=((1, event(NOW - OLDEST_EVENT - 1)),)))
    assert machine.sample().events == ()
    machine.take("a", "text", figures(2, events=tuple((number, event(NOW, str(number))) for number in range(2, 400))))
    assert [each.model for each in machine.sample().events] == [str(number) for number in range(400 - MAX_EVENTS, 400)]


def test_replicas_of_a_host_share_its_memory_and_the_latest_report_counts() -> None:
    (one,) = merged([host(used=GIB, name="b", threshold=0.8), host(used=2 * GIB, name="a", threshold=0.95)])
    assert (one.used, one.name, one.threshold) == (2 * GIB, "a", 0.8)


def test_hosts_come_by_name() -> None:
    found = merged([host("3", name="b"), host("2", name="a"), host("1", name="a")])
    assert [(each.name, each.id) for each in found] == [("a", "1"), ("a", "2"), ("b", "3")]
    assert merged([]) == ()


def test_devices_of_a_host_are_merged_and_the_latest_report_counts() -> None:
    first = host(devices=(device("m/GPU-1", name="cuda:1"), device("m/GPU-0", used=1)))
    (one,) = merged([first, host(devices=(device("m/GPU-0", used=7),))])
    assert [(each.name, each.id, each.used) for each in one.devices] == [
        ("cuda:0", "m/GPU-0", 7),
        ("cuda:1", "m/GPU-1", GIB),
    ]


def test_devices_of_one_name_are_distinguished() -> None:
    """Two services of a host see different GPUs and both call theirs cuda:0."""
    seen = [host(devices=(device("m/GPU-aaaaaaaa-1"),)), host(devices=(device("m/GPU-bbbbbbbb-1"),))]
    (one,) = merged(seen)
    assert [each.name for each in one.devices] == ["cuda:0 (GPU-aaaaaaaa)", "cuda:0 (GPU-bbbbbbbb)"]


def test_a_device_that_two_containers_see_belongs_to_the_first() -> None:
    a, b = merged([host("b", devices=(device("gpu", used=1),)), host("a", devices=(device("gpu", used=2),))])
    assert [(each.id, each.used) for each in a.devices] == [("gpu", 2)]
    assert b.devices == ()


def test_rates_are_about_the_minute_or_as_much_of_it_as_there_was() -> None:
    minute = RollingWindow(1000.0)
    minute.add(1010.0, {"images": 1.0})
    assert minute.rate("images", 1010.0) == pytest.approx(1 / 10)
    assert minute.rate("images", 1040.0) == pytest.approx(1 / 40)
    assert minute.rate("images", 1070.0) == pytest.approx(1 / 60)
    assert minute.rate("images", 1070.1) == 0.0
    assert minute.rate("audio_seconds", 1070.1) == 0.0


def test_a_first_picture_at_once_makes_no_wild_rate() -> None:
    minute = RollingWindow(1000.0)
    minute.add(1000.0, {"images": 1.0})
    assert minute.rate("images", 1000.0) <= 0.5


def measure(window: RollingWindow, at: float, *seconds: float) -> None:
    for _, latency in latencies(*seconds):
        window.measured(at, latency)


def test_percentiles_drop_old_samples() -> None:
    minute = RollingWindow(0.0)
    assert minute.percentiles(0.0) == {}
    measure(minute, 10.0, 1.0)
    measure(minute, 50.0, 2.0)
    assert minute.percentiles(70.0)["request"].count == 2
    assert minute.percentiles(71.0)["request"] == Percentiles(2.0, 2.0, 2.0, 1)
    assert not minute.empty(110.0)
    assert minute.percentiles(120.0) == {}
    assert minute.empty(120.0)


def test_of_many_times_the_latest_count() -> None:
    minute = RollingWindow(0.0)
    measure(minute, 1.0, *[9.0] * MOST_TIMES)
    measure(minute, 2.0, *[1.0] * MOST_TIMES)
    assert minute.percentiles(2.0)["request"] == Percentiles(1.0, 1.0, 1.0, MOST_TIMES)


def test_its_size_does_not_grow_with_reports() -> None:
    minute = RollingWindow(0.0)
    for hundredth in range(20_000):
        minute.add(hundredth / 100, {"images": 1.0})
    assert len(minute._bins) <= 32
    assert minute.rate("images", 200.0) == pytest.approx(100, rel=0.05)


def test_only_the_difference_counts() -> None:
    before, now = figures(10, generated_tokens=5), figures(12, generated_tokens=9, images=2)
    assert gains(before, now) == {"generated_tokens": 4.0, "images": 2.0}
    assert gains(None, now) == {"generated_tokens": 9.0, "images": 2.0}


def test_decreased_counter_counts_as_zero() -> None:
    """A counter falls when a model is deleted, because its series goes with it."""
    assert gains(figures(1, generated_tokens=9), figures(2, generated_tokens=3)) == {"generated_tokens": 0.0}


def test_percentiles_are_measured_times() -> None:
    assert percentiles([]) is None
    assert percentiles([0.7]) == Percentiles(0.7, 0.7, 0.7, 1)
    assert percentiles([3.0, 1.0, 2.0]) == Percentiles(2.0, 3.0, 3.0, 3)
    assert percentiles(range(100, 0, -1)) == Percentiles(50, 95, 99, 100)
    assert percentiles(range(1, 201)) == Percentiles(100, 190, 198, 200)


def test_percentiles_never_contradict_each_other() -> None:
    chance = random.Random(26)  # noqa: S311 (test data)
    for count in range(1, 400):
        values = [chance.lognormvariate(0, 3) for _ in range(count)]
        found = percentiles(values)
        assert found
        assert min(values) <= found.p50 <= found.p95 <= found.p99 <= max(values)
        assert {found.p50, found.p95, found.p99} <= set(values)
        for share, value in ((0.5, found.p50), (0.95, found.p95), (0.99, found.p99)):
            assert sum(each <= value for each in values) >= share * count > sum(each < value for each in values)


def tell(speed: Speed, uptime: float, tokens: float) -> None:
    speed.add(uptime, {"generated_tokens": tokens})


def test_it_takes_two_reports() -> None:
    speed = Speed()
    assert speed.rate("generated_tokens") is None
    tell(speed, 10, 0)
    assert speed.rate("generated_tokens") is None
    tell(speed, 12, 30)
    assert speed.rate("generated_tokens") == pytest.approx(15)
    assert speed.rate("images") is None, "it counts none"


def test_it_is_about_the_last_seconds() -> None:
    speed = Speed()
    for uptime, tokens in ((0, 0), (2, 100), (4, 100), (6, 0), (8, 0)):
        tell(speed, uptime, tokens)
    assert speed.rate("generated_tokens") == 0.0
    tell(speed, 10, 60)
    assert speed.rate("generated_tokens") == pytest.approx(60 / 4)


def test_reports_that_come_close_together_are_no_measure_by_themselves() -> None:
    speed = Speed()
    tell(speed, 0, 0)
    tell(speed, 0.1, 50)
    assert speed.rate("generated_tokens") is None
    tell(speed, 0.2, 50)
    tell(speed, 2.0, 0)
    assert speed.rate("generated_tokens") == pytest.approx(100 / 2), "and lose nothing"


def test_the_size_of_speeds_does_not_grow_with_reports() -> None:
    speed = Speed()
    for tenth in range(1000):
        tell(speed, tenth / 10, 1)
    assert len(speed._points) <= 16
    assert speed.rate("generated_tokens") == pytest.approx(10, rel=0.2)


def test_a_counter_that_begins_late_began_at_0() -> None:
    speed = Speed()
    speed.add(0, {})
    tell(speed, 2, 8)
    assert speed.rate("generated_tokens") == pytest.approx(4)
