"""Two replicas of the text service are restarted one after the other, under load: no request may fail."""

from __future__ import annotations

import os
import signal

import grpc
import pytest
from allm.models.v1 import model_pb2, model_service_pb2, model_service_pb2_grpc

from tests.chaos.fault import now
from tests.chaos.gateway_caller import TEXT, GatewayCaller
from tests.chaos.known_answers import SHORT_STREAMS
from tests.chaos.outcome import Outcome
from tests.chaos.process_faults import until
from tests.chaos.stack_members import service_pid
from tests.chaos.steady_load import steady_load
from tests.operator_side import Operator
from tests.stack import MODEL, Stack

CALLERS = 4
PAUSE_SECONDS = 0.1
SECONDS = 60.0
SERVING = {model_pb2.MODEL_STATE_READY, model_pb2.MODEL_STATE_LOADED}

pytestmark = pytest.mark.slow


def serving(stack: Stack) -> set[str]:
    """Returns the replicas that can serve the model."""
    with grpc.insecure_channel(stack.grpc_address) as channel:
        request = model_service_pb2.GetModelRequest(id=MODEL)
        reported = model_service_pb2_grpc.ModelServiceStub(channel).GetModel(request, timeout=SECONDS).model
    return {replica.replica for replica in reported.replicas if replica.state in SERVING}


async def test_a_rolling_restart_loses_no_request(two_replicas: Operator) -> None:
    stack = two_replicas.stack
    names = sorted(name for name in stack.note["children"] if name.startswith("text"))
    assert len(names) == 2
    await until(lambda: serving(stack) == set(names))
    caller = GatewayCaller(stack, SHORT_STREAMS)
    try:
        async with steady_load(caller, {TEXT: CALLERS}, PAUSE_SECONDS) as load:
            await load.until(lambda: load.ended(since=0.0) >= CALLERS)
            for name in names:
                before = service_pid(stack, name)
                os.kill(before, signal.SIGTERM)
                await until(lambda name=name, before=before: service_pid(stack, name) not in (0, before))
                await until(lambda: serving(stack) == set(names))
                since = now()
                await load.until(lambda since=since: load.ended(since=since) >= 2 * CALLERS)
    finally:
        await caller.close()
    wrong = [(attempt.outcome, attempt.why) for attempt in load.attempts if attempt.outcome is not Outcome.COMPLETED]
    assert not wrong, wrong
