"""Samples from replicas' reports: rates, restarts, added and removed replicas, events."""

from __future__ import annotations

import math

import pytest

from services.catalog.machine import (
    MAX_EVENTS,
    OLDEST_EVENT,
    CounterDelta,
    Machine,
    Percentiles,
    RollingWindow,
    Sample,
    Speed,
    Traffic,
    counter_delta,
    merged,
    percentile,
    percentiles,
)
from services.telemetry.figures import Event
from tests.catalog.catalog_service import Clock
from tests.catalog.reported_figures import GIB, device, figures, host

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
    machine.take("text-1", "text", figures(86_400, generated_tokens=10**9, request=(9, 9, 9)))
    assert (text(machine.sample()).rates, text(machine.sample()).times) == ({}, {})
    clock.now += 2
    machine.take("text-1", "text", figures(86_402, generated_tokens=10**9 + 40, request=(10, 9, 9)))
    found = text(machine.sample())
    assert found.rates == {"generated_tokens": pytest.approx(20)}
    assert found.times["request"].count == 1


def test_replicas_of_a_modality_are_summed(machine: Machine, clock: Clock) -> None:
    for uptime, tokens, running in ((10, 0, 1), (12, 20, 3)):
        for replica in ("text-1", "text-2"):
            reported = figures(uptime, generated_tokens=tokens, running=running, waiting=2, request=(tokens, 0, 0))
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
    machine.take("text-1", "text", figures(1000, generated_tokens=5000, request=(100, 0, 0)))
    clock.now += 5
    machine.take("text-1", "text", figures(3, began=2, generated_tokens=30, request=(2, 0, 0)))
    found = text(machine.sample())
    assert found.rates == {}, "of the new process there is one report so far"
    assert found.times["request"].count == 2, "they came since the report before"
    clock.now += 2
    machine.take("text-1", "text", figures(5, began=2, generated_tokens=50, request=(3, 0, 0)))
    found = text(machine.sample())
    assert found.rates == {"generated_tokens": pytest.approx(10)}
    assert found.times["request"].count == 3


def test_two_processes_of_one_name_make_no_wild_figures(machine: Machine, clock: Clock) -> None:
    """Two processes share a name by misconfiguration; neither has started since the other's report."""
    for _ in range(5):
        for began in (1, 2):
            machine.take("text-1", "text", figures(1000 + clock.now, began, generated_tokens=5000, request=(100, 0, 0)))
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


def one(**more: float):
    return counter_delta(None, figures(1, request=(0, 1, 0), **more))


def test_rates_are_about_the_minute_or_as_much_of_it_as_there_was() -> None:
    minute = RollingWindow(1000.0)
    minute.add(1010.0, one(images=1))
    assert minute.rate("images", 1010.0) == pytest.approx(1 / 10)
    assert minute.rate("images", 1040.0) == pytest.approx(1 / 40)
    assert minute.rate("images", 1070.0) == pytest.approx(1 / 60)
    assert minute.rate("images", 1070.1) == 0.0
    assert minute.rate("audio_seconds", 1070.1) == 0.0


def test_a_first_picture_at_once_makes_no_wild_rate() -> None:
    minute = RollingWindow(1000.0)
    minute.add(1000.0, one(images=1))
    assert minute.rate("images", 1000.0) <= 0.5


def test_percentiles_drop_old_samples() -> None:
    minute = RollingWindow(0.0)
    assert minute.percentiles(0.0) == {}
    minute.add(10.0, one())
    minute.add(50.0, one())
    assert minute.percentiles(70.0)["request"].count == 2
    assert minute.percentiles(71.0)["request"].count == 1
    assert minute.percentiles(120.0) == {}


def test_its_size_does_not_grow_with_reports() -> None:
    minute = RollingWindow(0.0)
    for hundredth in range(20_000):
        minute.add(hundredth / 100, one(images=1))
    assert len(minute._bins) <= 32
    assert minute.rate("images", 200.0) == pytest.approx(100, rel=0.05)


def test_only_the_difference_counts() -> None:
    before = figures(10, generated_tokens=5, request=(1, 2, 3))
    now = figures(12, generated_tokens=9, images=2, request=(1, 4, 4))
    found = counter_delta(before, now)
    assert found.counters == {"generated_tokens": 4.0, "images": 2.0}
    assert found.times == {"request": {1.0: 2, math.inf: 1}}


def test_without_a_report_before_everything_counts() -> None:
    found = counter_delta(None, figures(1, generated_tokens=3, request=(1, 0, 0)))
    assert (found.counters, found.times) == ({"generated_tokens": 3.0}, {"request": {0.1: 1}})


def test_decreased_counter_counts_as_zero() -> None:
    """A counter falls when a model is deleted, because its series goes with it."""
    found = counter_delta(
        figures(1, generated_tokens=9, request=(5, 5, 5)), figures(2, generated_tokens=3, request=(1, 6, 5))
    )
    assert (found.counters, found.times) == ({"generated_tokens": 0.0}, {"request": {1.0: 1}})


def test_sums() -> None:
    whole = CounterDelta()
    for _ in range(3):
        whole.add(counter_delta(None, figures(1, images=2, request=(1, 0, 2))))
    assert (whole.counters, whole.times) == ({"images": 6.0}, {"request": {0.1: 3, math.inf: 6}})


def test_no_percentiles_without_measurements() -> None:
    assert percentiles({}) is None
    assert percentiles({0.1: 0, math.inf: 0}) is None


def test_values_are_taken_to_lie_evenly_in_their_bucket() -> None:
    assert percentile({1.0: 10, math.inf: 0}, 0.5) == pytest.approx(0.5)
    assert percentile({1.0: 50, 2.0: 50, math.inf: 0}, 0.5) == pytest.approx(1.0)
    assert percentile({1.0: 50, 2.0: 50, math.inf: 0}, 0.75) == pytest.approx(1.5)
    assert percentile({1.0: 0, 2.0: 0, 4.0: 8}, 0.25) == pytest.approx(2.5), "empty buckets are passed over"


def test_above_the_last_bound_nothing_is_known_but_the_bound() -> None:
    assert percentile({1.0: 1, math.inf: 99}, 0.5) == 1.0
    assert percentile({math.inf: 5}, 0.5) == 0.0


def test_the_order_of_buckets_does_not_matter() -> None:
    assert percentile({math.inf: 0, 2.0: 10, 1.0: 10}, 0.75) == pytest.approx(1.5)


def test_all_of_them() -> None:
    found = percentiles({1.0: 90, 2.0: 9, 10.0: 1})
    assert isinstance(found, Percentiles)
    assert (found.p50, found.p95, found.p99) == pytest.approx((50 / 90, 1 + 5 / 9, 2.0))
    assert found.count == 100


def test_as_prometheus_computes_it() -> None:
    """histogram_quantile of cumulative buckets 0.1: 4, 0.5: 10, 1: 16, +Inf: 20, by hand from its documentation."""
    buckets = {0.1: 4, 0.5: 6, 1.0: 6, math.inf: 4}
    assert percentile(buckets, 0.2) == pytest.approx(0.1)
    assert percentile(buckets, 0.5) == pytest.approx(0.5)
    assert percentile(buckets, 0.65) == pytest.approx(0.5 + 0.5 * 3 / 6)
    assert percentile(buckets, 0.95) == 1.0


def tell(speed: Speed, uptime: float, tokens: float) -> None:
    speed.add(uptime, counter_delta(None, figures(1, generated_tokens=tokens)))


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
    speed.add(0, counter_delta(None, figures(1)))
    tell(speed, 2, 8)
    assert speed.rate("generated_tokens") == pytest.approx(4)
