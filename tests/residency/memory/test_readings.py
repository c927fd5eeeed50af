"""Free capacity after reservations and memory in use."""

from __future__ import annotations

from services.residency.memory.memory_estimate import HOST
from services.residency.memory.readings import Capacity, Room
from services.residency.memory.reservation import Reservation, ResidentKey
from tests.case import case


def row(reserved: dict[str, int], measured: dict[str, int] | None = None) -> Reservation:
    key = ResidentKey("m", 1, "toy")
    return Reservation(id="1", address="", replica="", key=key, devices=reserved, measured=measured or {})


def test_missing_files() -> None:
    for wanted, room, others, missing in [
        (100, Room(100, 100), [], {}),
        (101, Room(100, 500), [], {HOST: 1}),
        (101, Room(500, 100), [], {HOST: 1}),
        # A load in progress has not taken all its memory yet, so free memory is not available.
        (60, Room(1000, 100), [row({HOST: 50})], {HOST: 10}),
        (60, Room(1000, 100), [row({HOST: 50}, {HOST: 20})], {}),
        # A model that takes more than it reserved makes no room for others.
        (60, Room(1000, 50), [row({HOST: 50}, {HOST: 90})], {HOST: 10}),
        # Models hold all used memory, and the budget counts their reservations.
        (60, Room(100, 1000), [row({HOST: 30}, {HOST: 30}), row({HOST: 30}, {HOST: 30})], {HOST: 20}),
        # Usage exceeds the limit: nothing fits, however small.
        (1, Room(100, -5), [], {HOST: 6}),
        (0, Room(100, -5), [], {}),
        # Reservations on another device do not count.
        (60, Room(100, 100), [row({"cuda:0": 90})], {}),
    ]:
        with case(wanted=wanted, room=room, others=others, missing=missing):
            assert Capacity({HOST: room}).missing({HOST: wanted}, others) == missing


def test_each_place_for_itself_and_nothing_fits_where_nothing_is_read() -> None:
    capacity = Capacity({HOST: Room(100, 100), "cuda:0": Room(50, 50)})
    wanted = {HOST: 10, "cuda:0": 60, "cuda:9": 7, "cuda:8": 0}
    assert capacity.missing(wanted, iter([row({"cuda:0": 5})])) == {"cuda:0": 15, "cuda:9": 7}


def test_pinned_busy_or_loading_models_are_not_idle() -> None:
    idle = {"loading": False, "busy": False, "pinned": False}
    key = ResidentKey("m", 1, "toy")
    assert Reservation(id="1", address="", replica="", key=key, devices={}, **idle).idle
    for name in idle:
        assert not Reservation(id="1", address="", replica="", key=key, devices={}, **idle | {name: True}).idle
