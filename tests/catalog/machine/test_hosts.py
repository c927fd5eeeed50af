"""A memory pool that several replicas report appears once."""

from __future__ import annotations

from services.catalog.machine.hosts import merged
from tests.catalog.told_figures import GIB, device, host


def test_replicas_of_a_host_tell_of_one_memory_and_the_latest_counts() -> None:
    (one,) = merged([host(used=GIB, name="b", threshold=0.8), host(used=2 * GIB, name="a", threshold=0.95)])
    assert (one.used, one.name, one.threshold) == (2 * GIB, "a", 0.8)


def test_hosts_come_by_name() -> None:
    found = merged([host("3", name="b"), host("2", name="a"), host("1", name="a")])
    assert [(each.name, each.id) for each in found] == [("a", "1"), ("a", "2"), ("b", "3")]
    assert merged([]) == ()


def test_devices_of_a_host_are_put_together_and_the_latest_counts() -> None:
    first = host(devices=(device("m/GPU-1", name="cuda:1"), device("m/GPU-0", used=1)))
    (one,) = merged([first, host(devices=(device("m/GPU-0", used=7),))])
    assert [(each.name, each.id, each.used) for each in one.devices] == [
        ("cuda:0", "m/GPU-0", 7),
        ("cuda:1", "m/GPU-1", GIB),
    ]


def test_devices_of_one_name_are_told_apart() -> None:
    """Two services of a host see different GPUs and both call theirs cuda:0."""
    seen = [host(devices=(device("m/GPU-aaaaaaaa-1"),)), host(devices=(device("m/GPU-bbbbbbbb-1"),))]
    (one,) = merged(seen)
    assert [each.name for each in one.devices] == ["cuda:0 (GPU-aaaaaaaa)", "cuda:0 (GPU-bbbbbbbb)"]


def test_a_device_that_two_containers_see_belongs_to_the_first() -> None:
    a, b = merged([host("b", devices=(device("gpu", used=1),)), host("a", devices=(device("gpu", used=2),))])
    assert [(each.id, each.used) for each in a.devices] == [("gpu", 2)]
    assert b.devices == ()
