"""The catalog killed under a running stack: inference continues, confirmed changes survive, the state converges."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from allm.models.v1 import machine_service_pb2, machine_service_pb2_grpc
from google.protobuf import duration_pb2

from services.catalog.database import FILE_NAME
from tests.demo_model import demo_model
from tests.operator_side import Operator
from tests.stack import MODEL, Stack

pytestmark = pytest.mark.slow
PATIENCE = 60.0  # seconds


def test_inference_goes_on_while_the_catalog_is_down_and_it_comes_back(breakable: Operator) -> None:
    """The catalog alone is killed many times in tests/catalog/test_crash.py."""
    operator, before = breakable, set(breakable.ready())
    assert "Paris" in operator.answer(MODEL)
    put(operator.root / "m.gguf")
    operator.taken("mine", operator.root / "m.gguf", "gguf", aliases=["nick"])
    operator.until(lambda: saved(operator.stack.home))
    (known,) = saved(operator.stack.home)
    pid: int = operator.stack.note["children"]["catalog"]
    os.kill(pid, signal.SIGKILL)
    # Request an answer immediately, while the catalog is certainly down.
    assert "Paris" in operator.answer(MODEL)
    reply = operator.call("GET", "/v1/models")
    if reply.status != 200:
        assert (reply.status, reply.error["type"]) == (503, "server_error"), reply
    unknown = operator.chat("never-registered")
    assert unknown.status in (404, 503), unknown
    operator.until(lambda: operator.stack.note["children"]["catalog"] != pid)
    operator.until(lambda: operator.call("GET", "/v1/models").status == 200)
    operator.until(lambda: set(operator.ready()) == before | {"mine", "nick"})
    assert "Paris" in operator.answer("nick")
    operator.delete("mine")
    assert known in past(operator.stack), "the machine's history survives"


def saved(home: Path) -> list[int]:
    """Returns the time of the last sample in the catalog's file, in milliseconds; empty before the first."""
    with closing(sqlite3.connect(f"{(home / FILE_NAME).as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT time FROM machine_samples ORDER BY time DESC LIMIT 1").fetchall()
    return [time for (time,) in rows]


def past(stack: Stack) -> list[int]:
    """Returns the times of the machine's past samples, in milliseconds."""
    request = machine_service_pb2.WatchMachineRequest(history=duration_pb2.Duration(seconds=900))
    times = []
    with grpc.insecure_channel(stack.grpc_address) as channel:
        for event in machine_service_pb2_grpc.MachineServiceStub(channel).WatchMachine(request, timeout=PATIENCE):
            if event.HasField("synced"):
                break
            times.append(event.sample.time.ToMilliseconds())
    return times


def put(path: Path) -> None:
    """Links or copies the demo model to `path`."""
    try:
        os.link(demo_model(), path)
    except OSError:  # another disk
        shutil.copy(demo_model(), path)
