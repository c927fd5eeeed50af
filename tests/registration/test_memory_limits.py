"""Memory limits on the real stack: two models that do not fit together take turns; one that never fits is refused."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import grpc
import httpx
import pytest
from allm.models.v1 import model_pb2, model_service_pb2, model_service_pb2_grpc
from allm.text.v1 import chat_pb2, chat_service_pb2, chat_service_pb2_grpc

from tests.chaos.stack_members import worker_pids
from tests.demo_model import demo_model
from tests.minilm import ENCODER, write_gguf
from tests.stack import IMAGE_MODEL, MODEL, Stack, running_stack

SECONDS = 120.0
POLL_SECONDS = 0.1
ENCODER_BYTES = 80_000_000
SHAPES = Path(__file__).parents[2] / "training" / "shapes_sd" / "weights"
BOTH_ALMOST = 900 * 1024 * 1024  # each of the demo models needs at least two thirds of it

pytestmark = pytest.mark.slow


def chat(stack: Stack) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    return httpx.post(f"{stack.base_url}/chat/completions", json=body, timeout=SECONDS)


def embed(stack: Stack) -> httpx.Response:
    return httpx.post(f"{stack.base_url}/embeddings", json={"model": ENCODER, "input": "Hi"}, timeout=SECONDS)


def status(stack: Stack, model_id: str) -> model_pb2.ReplicaStatus:
    """Returns the status that the text service reports for a model."""
    with grpc.insecure_channel(stack.grpc_address) as channel:
        request = model_service_pb2.GetModelRequest(id=model_id)
        (replica,) = model_service_pb2_grpc.ModelServiceStub(channel).GetModel(request, timeout=SECONDS).model.replicas
        return replica


def until(stack: Stack, model_id: str, state: model_pb2.ModelState.ValueType) -> model_pb2.ReplicaStatus:
    """Waits until the catalog shows a state; returns the status."""
    deadline = time.monotonic() + SECONDS
    while (reported := status(stack, model_id)).state != state:
        assert time.monotonic() < deadline, (reported, stack.output())
        time.sleep(POLL_SECONDS)
    return reported


def test_two_models_of_which_one_fits_take_turns(stack: Stack, tmp_path: Path) -> None:
    assert chat(stack).status_code == 200
    # Enough for either model. The encoder needs more than ENCODER_BYTES, the size of its weights.
    budget = until(stack, MODEL, model_pb2.MODEL_STATE_LOADED).memory.reserved_bytes + ENCODER_BYTES
    encoder = tmp_path / "encoder.gguf"
    write_gguf(encoder)  # runs on llama.cpp, which starts faster than torch
    assert encoder.stat().st_size > ENCODER_BYTES
    models = f"{MODEL}={demo_model()},{ENCODER}={encoder}"
    with running_stack(tmp_path / "home", ALLM_MODELS=models, ALLM_HOST_MEMORY_BYTES=str(budget)) as small:
        for ask, here, gone in ((chat, MODEL, ENCODER), (embed, ENCODER, MODEL), (chat, MODEL, ENCODER)):
            answer = ask(small)
            assert answer.status_code == 200, (answer.text, small.output())
            assert until(small, here, model_pb2.MODEL_STATE_LOADED).memory.reserved_bytes <= budget
            assert not until(small, gone, model_pb2.MODEL_STATE_READY).HasField("memory")


def draw(stack: Stack) -> httpx.Response:
    body = {"model": IMAGE_MODEL, "prompt": "a red circle", "steps": 2}
    return httpx.post(f"{stack.base_url}/images/generations", json=body, timeout=SECONDS)


def workers_until(stop: Event, stack: Stack) -> int:
    """Returns the highest number of workers of both services alive at the same time."""
    most = 0
    while not stop.wait(POLL_SECONDS / 10):
        most = max(most, sum(len(worker_pids(stack, service)) for service in ("text", "image")))
    return most


def test_a_text_and_an_image_model_that_load_at_the_same_moment_are_never_both_there(tmp_path: Path) -> None:
    models = f"{MODEL}={demo_model()},{IMAGE_MODEL}={SHAPES}"
    settings = {"ALLM_MODELS": models, "ALLM_IMAGE_REPLICAS": "1", "ALLM_HOST_MEMORY_BYTES": str(BOTH_ALMOST)}
    with running_stack(tmp_path / "home", **settings) as stack, ThreadPoolExecutor(3) as pool:
        stop = Event()
        most = pool.submit(workers_until, stop, stack)
        try:
            answers = [asked.result() for asked in [pool.submit(chat, stack), pool.submit(draw, stack)]]
            assert any(answer.status_code == 200 for answer in answers), [answer.text for answer in answers]
            for answer in answers:  # a request fails if the other model stays in use too long
                assert answer.status_code == 200 or answer.json()["error"]["code"] == "out_of_memory", answer.text
            for ask in (draw, chat):  # idle models are evicted; failed loads leave no memory reserved
                assert (answer := ask(stack)).status_code == 200, (answer.text, stack.output())
        finally:
            stop.set()
        assert most.result() == 1


def test_load_that_never_fits_is_refused_without_retry(tmp_path: Path) -> None:
    with running_stack(tmp_path / "home", ALLM_MODEL_MEMORY_BYTES="1000000") as stack:
        answer = chat(stack)
        assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "false")
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "out_of_memory")
        assert f"{MODEL} needs " in error["message"]
        assert "one model may take 977 KiB (ALLM_MODEL_MEMORY_BYTES)" in error["message"]
        with grpc.insecure_channel(stack.grpc_address) as channel:
            message = chat_pb2.ChatMessage(role=chat_pb2.CHAT_ROLE_USER, content=[chat_pb2.ContentPart(text="Hi")])
            request = chat_service_pb2.CreateChatCompletionRequest(model=MODEL, messages=[message])
            with pytest.raises(grpc.RpcError) as refused:
                chat_service_pb2_grpc.ChatServiceStub(channel).CreateChatCompletion(request, timeout=SECONDS)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
        assert "ALLM_MODEL_MEMORY_BYTES" in refused.value.details()  # type: ignore[attr-defined]
        assert "ALLM_MODEL_MEMORY_BYTES" in until(stack, MODEL, model_pb2.MODEL_STATE_FAILED).reason
