"""Checks that a model can be loaded into memory and unloaded."""

from __future__ import annotations

import time

from allm.models.v1 import model_pb2

from services.byte_count import bytes_word
from services.cli.models.connection import Late
from services.cli.models.stage import Stage, loaded, of_replica, stage
from services.cli.verify.check import Check, Failed
from services.cli.verify.subject import Subject

LOAD_SECONDS = 3600.0
UNLOAD_SECONDS = 60.0


def _load(subject: Subject) -> str:
    began = time.monotonic()
    wanted = subject.catalog.load(subject.model.id, subject.runtime)
    reached: Stage | None = None
    try:
        for current in subject.catalog.follow(wanted.id, LOAD_SECONDS):
            if reached := loaded(subject.runtime, everywhere=True)(current):
                break
    except Late:
        now = stage(subject.catalog.get(wanted.id).model, wanted.generation)
        raise Failed(f"still {now.state} after {LOAD_SECONDS:g} seconds", "see the service's logs") from None
    if reached is None or reached.state != "loaded":
        why = reached.reason if reached else "its progress cannot be read"
        raise Failed(f"{reached.state if reached else 'unknown'}: {why}", "the model's files, as the reason says")
    return f"with {reached.runtime} on {reached.device} in {time.monotonic() - began:.1f} s"


def _unload(subject: Subject) -> str:
    peak = max((each.peak_memory_bytes for each in subject.catalog.get(subject.model.id).model.replicas), default=0)
    began = time.monotonic()
    subject.catalog.unload(subject.model.id)
    try:
        for current in subject.catalog.follow(subject.model.id, UNLOAD_SECONDS):
            if not any(map(_held, current.replicas)):
                return f"in {time.monotonic() - began:.1f} s; its peak memory was {bytes_word(peak)}"
    except Late:
        pass
    raise Failed(
        f"still in memory after {UNLOAD_SECONDS:g} seconds",
        "a cancelled request still runs, another client uses the model, or its worker does not end",
    )


LOAD_CHECK = Check(name="load", compared="the state of every replica: `loaded`", run=_load)
UNLOAD_CHECK = Check(
    name="unload",
    compared=f"the reports of all replicas within {UNLOAD_SECONDS:g} seconds of unloading: no worker and no memory",
    run=_unload,
)


def _held(replica: model_pb2.ReplicaStatus) -> bool:
    """Reports whether a worker exists, or has not been reported as gone."""
    return of_replica(replica, 0).state == "loaded" or replica.peak_memory_bytes > 0
