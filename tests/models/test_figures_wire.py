"""Figures as protobuf and back."""

from __future__ import annotations

import pytest

from services.errors import InvalidRequest
from services.models.figures_wire import EVENT_KINDS, MAX_NAME, event_message, figures_message, read_figures
from services.telemetry.figures import KINDS, DeviceFigures, Event, Figures, HostFigures, Latencies
from tests.case import case

WHOLE = Figures(
    began=1_700_000_000_123_456_789,
    uptime=12.5,
    running=3,
    waiting=1,
    counters={"generated_tokens": 100.0, "prompt_tokens": 0.0, "audio_seconds": 1.5, "images": 2.0},
    times={
        "first_output": Latencies((0.1, 1.0), (1, 2, 3)),
        "output_token": Latencies((0.5,), (0, 0)),
        "request": Latencies((), (4,)),
    },
    host=HostFigures(
        id="boot/machine",
        name="box",
        total=100,
        used=60,
        threshold=0.9,
        devices=(DeviceFigures(id="boot/GPU-1", name="cuda:0", total=80, used=8),),
    ),
    events=((7, Event(at=1_700_000_000.25, kind="evicted", model="m", reason="pressure")),),
)


def test_everything_comes_back_as_it_was() -> None:
    assert read_figures(figures_message(WHOLE)) == WHOLE


def test_unmeasured_values_stay_absent() -> None:
    """A measured 0 differs from no measurement."""
    little = Figures(began=1, uptime=0.0)
    assert read_figures(figures_message(little)) == little


def test_every_kind_of_event_has_a_name_on_the_wire() -> None:
    assert set(EVENT_KINDS) == set(KINDS)
    assert len(set(EVENT_KINDS.values())) == len(KINDS)
    assert 0 not in EVENT_KINDS.values()


def test_an_event_names_its_replica() -> None:
    message = event_message(Event(at=1.5, kind="replica_lost", replica="text-1"))
    assert (message.replica, message.time.ToMilliseconds()) == ("text-1", 1500)


def test_texts_are_cut() -> None:
    message = figures_message(WHOLE)
    message.host.name = message.host.devices[0].id = message.events[0].event.reason = "x" * 1000
    found = read_figures(message)
    assert found.host
    assert len(found.host.name) == len(found.host.devices[0].id) == len(found.events[0][1].reason) == MAX_NAME


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_threshold_is_a_share(share: float) -> None:
    message = figures_message(WHOLE)
    message.host.threshold_share = share
    with pytest.raises(InvalidRequest, match="threshold"):
        read_figures(message)


def test_bounds_ascend() -> None:
    for bounds in [[0.0], [-1.0, 1.0], [1.0, 1.0], [2.0, 1.0], [float("inf")], [float("nan")]]:
        with case(bounds=bounds):
            message = figures_message(WHOLE)
            message.request.bounds[:] = bounds
            message.request.counts[:] = [0] * (len(bounds) + 1)
            with pytest.raises(InvalidRequest, match="ascending"):
                read_figures(message)
