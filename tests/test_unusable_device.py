"""A device that is asked for and not there: nothing is ready, and every interface says why."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from allm.models.v1 import model_pb2, model_service_pb2, model_service_pb2_grpc

from services.worker.devices import nvidia_driver
from tests.demo_model import demo_model
from tests.minilm import ENCODER, minilm
from tests.presets import SHAPES, named
from tests.stack import IMAGE_MODEL, MODEL, SPEECH_MODEL, Stack, environment, running_stack
from tests.whisper_weights import tiny_en_ct2

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(nvidia_driver()), reason="there is an NVIDIA driver here")]

RUNTIMES = {ENCODER: "torch", IMAGE_MODEL: "diffusers", MODEL: "llama_cpp", SPEECH_MODEL: "faster_whisper"}
NO_DRIVER = "cannot compute on cuda here: no NVIDIA driver is loaded here"


@pytest.fixture(scope="module")
def forced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    models = {MODEL: demo_model(), ENCODER: minilm(), SPEECH_MODEL: tiny_en_ct2(), IMAGE_MODEL: SHAPES}
    settings = {"ALLM_MODELS": named(models), "ALLM_AUDIO_REPLICAS": "1", "ALLM_IMAGE_REPLICAS": "1"}
    with running_stack(tmp_path_factory.mktemp("forced") / "home", ALLM_DEVICE="cuda", **settings) as running:
        yield running


def listed(stack: Stack) -> dict[str, model_pb2.Model]:
    with grpc.insecure_channel(stack.grpc_address) as channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        found = stub.ListModels(model_service_pb2.ListModelsRequest(), timeout=30)
    return {model.id: model for model in found.models}


def command(stack: Stack, *words: str) -> str:
    call = [sys.executable, "-m", "services.cli", *words]
    environ = {**environment(stack.home, ALLM_PORT=str(stack.port)), "COLUMNS": "500"}
    return subprocess.run(call, env=environ, capture_output=True, text=True, check=False).stdout


def test_no_model_is_ready_and_the_list_says_why(forced: Stack) -> None:
    models = listed(forced)
    assert models.keys() == RUNTIMES.keys()
    for model_id, model in models.items():
        assert model.state == model_pb2.MODEL_STATE_UNSUPPORTED, model_id
        assert model.reason.startswith(f"{model_id}: {RUNTIMES[model_id]} {NO_DRIVER}")
    with urllib.request.urlopen(f"{forced.base_url}/models", timeout=30) as reply:
        assert json.load(reply)["data"] == []


def test_a_request_is_refused_with_the_reason(forced: Stack) -> None:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}).encode()
    request = urllib.request.Request(f"{forced.base_url}/chat/completions", body, {"content-type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request, timeout=30)
    assert refusal.value.code == 501
    assert NO_DRIVER in json.load(refusal.value)["error"]["message"]


def test_the_commands_tell_the_reason(forced: Stack) -> None:
    assert NO_DRIVER in command(forced, "models", "list")
    why = command(forced, "models", "why", SPEECH_MODEL)
    assert f"faster_whisper cannot run it: faster_whisper {NO_DRIVER}" in " ".join(why.split())
