"""Replicas' reports: complete and partial ones, and expiry of silent replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from services.catalog import replica_status as module
from services.catalog.replica_status import ReplicaReport, ReplicaStatus
from services.errors import InvalidRequest, Overloaded
from services.models.runtimes import RUNTIMES
from services.models.status import Status
from tests.catalog.catalog_service import Clock

READY = Status(state="ready", generation=1)
LOADED = Status(state="loaded", generation=1)
WHOLE = ReplicaReport(replica="t", modality="text", complete=True, device="cpu", runtimes=RUNTIMES)
PART = ReplicaReport(replica="t", modality="text")
GONE = replace(PART, leaving=True)


def registered(model_id: str) -> bool:
    return model_id != "unknown"


def names(replica_status: ReplicaStatus) -> list[str]:
    return [replica.name for replica in replica_status.live("text")]


def said(replica_status: ReplicaStatus) -> dict[str, Status]:
    (replica,) = replica_status.live("text")
    return replica.statuses


def live_metric(modality: str) -> float | None:
    return REGISTRY.get_sample_value("allm_replicas_live", {"modality": modality})


def test_partial_report_of_an_unknown_replica_is_ignored() -> None:
    replica_status = ReplicaStatus(Clock())
    effect = replica_status.report(replace(PART, statuses={"m": READY}), registered)
    assert (effect.known, effect.models, effect.rosters) == (False, frozenset(), frozenset())
    assert names(replica_status) == []


def test_partial_reports_merge_and_whole_ones_replace() -> None:
    replica_status = ReplicaStatus(Clock())
    effect = replica_status.report(replace(WHOLE, statuses={"a": READY, "b": READY}), registered)
    assert (effect.known, effect.rosters) == (True, {"text"})
    effect = replica_status.report(replace(PART, statuses={"b": LOADED, "c": READY}), registered)
    assert (effect.known, effect.models, effect.rosters) == (True, {"b", "c"}, frozenset())
    assert said(replica_status) == {"a": READY, "b": LOADED, "c": READY}
    effect = replica_status.report(replace(WHOLE, statuses={"b": LOADED, "d": READY}), registered)
    assert (effect.models, effect.rosters) == ({"a", "c", "d"}, frozenset())
    assert said(replica_status) == {"b": LOADED, "d": READY}


def test_repeated_report_is_no_change() -> None:
    replica_status = ReplicaStatus(Clock())
    replica_status.report(replace(WHOLE, statuses={"a": READY}), registered)
    assert replica_status.report(replace(PART, statuses={"a": READY}), registered).models == frozenset()
    effect = replica_status.report(replace(WHOLE, statuses={"a": READY}), registered)
    assert (effect.models, effect.rosters) == (frozenset(), frozenset())


def test_models_that_are_not_registered_are_ignored() -> None:
    replica_status = ReplicaStatus(Clock())
    replica_status.report(replace(WHOLE, statuses={"unknown": READY, "a": READY}), registered)
    assert replica_status.report(replace(PART, statuses={"unknown": READY}), registered).models == frozenset()
    assert said(replica_status) == {"a": READY}
    replica_status.forget("a")
    assert said(replica_status) == {}


@pytest.mark.parametrize("changes", [{"device": "cuda"}, {"forced": True}, {"runtimes": ()}])
def test_another_offer_concerns_every_model(changes: dict[str, object]) -> None:
    replica_status = ReplicaStatus(Clock())
    replica_status.report(WHOLE, registered)
    assert replica_status.report(replace(WHOLE, **changes), registered).rosters == {"text"}


def test_a_live_replica_keeps_its_name_from_other_modalities() -> None:
    clock = Clock()
    replica_status = ReplicaStatus(clock)
    replica_status.report(WHOLE, registered)
    for report in (WHOLE, PART, GONE):
        with pytest.raises(InvalidRequest, match="'t' serves text, not audio"):
            replica_status.report(replace(report, modality="audio"), registered)
    assert names(replica_status) == ["t"]
    clock.now = 6.1
    replica_status.expire()
    assert replica_status.report(replace(WHOLE, modality="audio"), registered).rosters == {"audio"}


def test_replica_silent_for_three_intervals_no_longer_counts() -> None:
    clock = Clock()
    replica_status = ReplicaStatus(clock)
    replica_status.report(WHOLE, registered)
    replica_status.report(replace(WHOLE, replica="u"), registered)
    clock.now = 5.9
    assert replica_status.expire() == []
    replica_status.report(PART, registered)  # an empty report is a heartbeat, too
    clock.now = 6.1
    assert [replica.name for replica in replica_status.expire()] == ["u"]
    assert names(replica_status) == ["t"]
    assert live_metric("text") == 1
    assert not replica_status.report(replace(PART, replica="u"), registered).known, "it must say everything again"


def test_leaving_replica_is_removed_at_once() -> None:
    replica_status = ReplicaStatus(Clock())
    replica_status.report(WHOLE, registered)
    effect = replica_status.report(GONE, registered)
    assert (effect.known, effect.rosters, names(replica_status)) == (True, {"text"}, [])
    assert live_metric("text") == 0
    assert replica_status.report(GONE, registered).rosters == frozenset(), "nothing has changed"


def test_replicas_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REPLICAS", 2)
    replica_status = ReplicaStatus(Clock())
    for name in ("a", "b", "a"):
        replica_status.report(replace(WHOLE, replica=name), registered)
    with pytest.raises(Overloaded, match="2 replicas are known, which is the limit"):
        replica_status.report(replace(WHOLE, replica="c"), registered)
