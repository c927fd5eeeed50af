"""Callers of the image service who hang up or reach their deadline: the service stops drawing for them."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from allm.image.v1 import image_service_pb2, image_service_pb2_grpc

from tests.pictures.picture_files import file, halves
from tests.runtime_counters import PATIENCE_SECONDS, Runtime, answer, asked
from tests.stack import IMAGE_MODEL, Stack

# A worker needs some ten seconds to import torch and diffusers.
pytestmark = pytest.mark.slow

PATH = "/v1/images/generations"
FEW_STEPS = 20  # steps until a worker learns of a hang-up that its service knows of; the whole takes some hundred


@pytest.fixture
def shapes(stack: Stack) -> Runtime:
    """Returns the model, loaded and idle."""
    runtime = Runtime(stack, "image", IMAGE_MODEL)
    with asked(stack, PATH, body(n=1, steps=1)) as connection:
        status, reported = answer(connection)
    assert status == 200, reported
    runtime.wait_until(lambda: runtime.idle)
    return runtime


def body(**changes: Any) -> bytes:
    wanted = {"model": IMAGE_MODEL, "prompt": "a red circle", "n": 10, "steps": 150, "seed": 7}
    return json.dumps(wanted | changes).encode()


@pytest.mark.parametrize("wanted", [{}, {"stream": True, "partial_images": 0, "n": 1}])
def test_a_caller_who_hangs_up_frees_the_worker_within_a_step(shapes: Runtime, wanted: dict[str, Any]) -> None:
    with ExitStack() as standing:  # noqa: SIM117 (the one outlasts the other)
        with asked(shapes.stack, PATH, body(**wanted)):
            shapes.wait_until(lambda: shapes.running == 1)
            standing.enter_context(shapes.standing_still())
    steps = shapes.steps
    shapes.wait_until(lambda: shapes.idle)
    assert shapes.steps - steps <= FEW_STEPS


def test_an_edit_that_is_cancelled_frees_the_worker_within_a_step(shapes: Runtime) -> None:
    request = image_service_pb2.StreamEditImageRequest(
        config={"model": IMAGE_MODEL, "width": 128, "height": 128, "count": 10, "steps": 150, "seed": 7},
        prompt="a red circle",
        image=file(halves(64, 64)),
        mask=file(halves(64, 64, left=(0, 0, 0, 0), right=(0, 0, 0, 255))),
    )
    with grpc.insecure_channel(shapes.stack.grpc_address) as channel:
        events = image_service_pb2_grpc.ImageServiceStub(channel).StreamEditImage(request, timeout=PATIENCE_SECONDS)
        assert any(event.HasField("progress") for event in events)
        with shapes.standing_still():
            events.cancel()
        steps = shapes.steps
        shapes.wait_until(lambda: shapes.idle)
    assert shapes.steps - steps <= FEW_STEPS


def test_expired_caller_gets_an_error_and_frees_the_worker(shapes: Runtime) -> None:
    with asked(shapes.stack, PATH, body(), headers={"x-request-timeout": "1"}) as connection:
        status, reported = answer(connection)
    assert (status, reported["error"]["code"]) == (504, "timeout")
    assert "1 seconds of x-request-timeout" in reported["error"]["message"]
    shapes.wait_until(lambda: shapes.idle)
