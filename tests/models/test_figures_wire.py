"""Figures as protobuf and back."""

from __future__ import annotations

import pytest

from services.errors import InvalidRequest
from services.models.figures_wire import (
    EVENT_KINDS,
    LATENCY_KINDS,
    MAX_MODELS,
    MAX_NAME,
    event_message,
    figures_message,
    read_figures,
)
from services.telemetry.figures import KINDS, TIMES, DeviceFigures, Event, Figures, HostFigures, Latency, ModelFigures
from tests.case import case

WHOLE = Figures(
    began=1_700_000_000_123_456_789,
    uptime=12.5,
    running=3,
    waiting=1,
    counters={"generated_tokens": 100.0, "prompt_tokens": 0.0, "audio_seconds": 1.5, "images": 2.0},
    models={"m": ModelFigures(running=1, counters={"requests": 4.0, "images": 2.0}), "n": ModelFigures(waiting=2)},
    latencies=tuple(
        (number, Latency(kind=kind, model="m", seconds=0.1 * number, age=1.5)) for number, kind in enumerate(TIMES, 7)
    ),
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
    assert set(LATENCY_KINDS) == set(TIMES)
    assert len({0, *LATENCY_KINDS.values()}) == len(TIMES) + 1


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


def test_times_are_finite_and_not_negative() -> None:
    for wrong in (-1.0, float("inf"), float("nan")):
        for name in ("seconds", "age_seconds"):
            with case(name=name, wrong=wrong):
                message = figures_message(WHOLE)
                setattr(message.latencies[0], name, wrong)
                with pytest.raises(InvalidRequest, match="ages must be finite"):
                    read_figures(message)


def test_latencies_of_a_newer_service_are_skipped() -> None:
    message = figures_message(WHOLE)
    message.latencies.add(number=99, model_id="m", kind=99)  # type: ignore[arg-type]
    assert read_figures(message) == WHOLE


def test_figures_of_no_model_are_skipped() -> None:
    message = figures_message(WHOLE)
    message.latencies.add(number=99, kind=LATENCY_KINDS["request"], seconds=1.0)
    message.models.add(running=5)
    assert read_figures(message) == WHOLE


def test_a_report_is_bounded() -> None:
    many = {str(number): ModelFigures() for number in range(2 * MAX_MODELS)}
    message = figures_message(Figures(began=1, uptime=0.0, models=many))
    assert len(read_figures(message).models) == MAX_MODELS
    message.models.add(model_id="one more")
    with pytest.raises(InvalidRequest, match="at most 1000 entries"):
        read_figures(message)
