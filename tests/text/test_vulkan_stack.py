"""llama.cpp on a GPU through the whole stack: Vulkan on Mesa's software device, which computes on the processor.

The stack starts without a GPU build of llama.cpp, and moves to it while it serves, as with `make serve`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from allm.models.v1 import machine_service_pb2, machine_service_pb2_grpc

from services.cli.serve.serve import MOVES
from services.text.runtime_availability import llama_devices, llama_library
from tests.demo_model import demo_model
from tests.operator_side import PATIENCE_SECONDS, Operator
from tests.stack import MODEL, environment, running_stack
from tests.text.service import workers
from tests.verification.random_gguf import write_glm4

pytestmark = pytest.mark.slow
SMALL, LARGE = "small-random", "large-context"
DEVICE = "vulkan:0"
LOAD_SECONDS = 400
ROOM = 1000 * 1024 * 1024  # bytes of the device for all models: for the demo model, or for the small one


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """A stack with three models and an empty folder for llama.cpp's builds."""
    folder = tmp_path_factory.mktemp("vulkan")
    small = write_glm4(folder / "small")
    engine = {"context_tokens": 512, "max_sequences": 1, "kv_tokens": 512}
    large = {"context_tokens": 8192, "max_sequences": 8, "kv_tokens": 65536}
    entries = [
        {"id": MODEL, "source": demo_model().as_uri(), "format": "gguf", "engine": engine},
        {"id": LARGE, "source": demo_model().as_uri(), "format": "gguf", "engine": large},
        {"id": SMALL, "source": small.as_uri(), "format": "gguf", "engine": engine},
    ]
    models = folder / "models.yaml"
    models.write_text(json.dumps({"models": entries}), encoding="utf-8")
    (folder / "builds").mkdir()
    settings = {
        "ALLM_MODELS_FILE": str(models),
        "ALLM_MODEL_ROOTS": f"{demo_model().parent},{folder}",
        "ALLM_LLAMA_LIBRARIES": str(folder / "builds"),
        "ALLM_DEVICE_MEMORY_BYTES": str(ROOM),
        "GGML_VK_VISIBLE_DEVICES": "0",
    }
    with running_stack(folder / "home", **settings) as stack:
        yield Operator(stack, folder)


@pytest.fixture(scope="module")
def on_the_processor(operator: Operator) -> list[Any]:
    """What the small model says before there is a GPU build; then installs the build and waits for the move."""
    assert replica(operator, SMALL)["device"] == "cpu"
    words = most_likely(operator)
    build = llama_library("vulkan")
    assert build, "make test-all builds it: make llama-vulkan"
    (operator.root / "builds" / "vulkan").symlink_to(build)
    operator.until(lambda: "is running again" in (operator.stack.home / "output.txt").read_text())
    operator.until(lambda: replica(operator, SMALL)["device"] == "vulkan")
    operator.until(lambda: operator.chat("unknown").status == 404)  # the gateway sees the service again
    return words


def replica(operator: Operator, model_id: str) -> dict[str, Any]:
    """Returns what the text service reports of a model: state, device, memory."""
    found = operator.all()[model_id]["replicas"]
    return dict(found[0]) if found else {"device": "", "memory": None}


def most_likely(operator: Operator) -> list[Any]:
    """Returns the small model's continuation at temperature 0: tokens with their log probabilities."""
    choice = continuation(operator, SMALL, max_tokens=24, logprobs=0, ignore_eos=True)
    return list(zip(choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"], strict=True))


def continuation(operator: Operator, model_id: str, **asked: Any) -> dict[str, Any]:
    """Returns the continuation of a short prompt (a token of the demo model takes half a second); loads the model.

    Mesa's software device compiles its shaders once per machine, which takes minutes if the cores are busy. Then the
    request is repeated.
    """
    deadline = time.monotonic() + LOAD_SECONDS
    body = {"model": model_id, "prompt": "The capital of France is", "temperature": 0, **asked}
    while True:
        with suppress(TimeoutError):
            reply = operator.call("POST", "/v1/completions", body)
            if reply.status == 200:
                choice: dict[str, Any] = reply.json["choices"][0]
                return choice
            assert reply.status in (500, 503), reply
            assert "killed by" not in reply.error["message"]
        assert time.monotonic() < deadline, operator.stack.output()


def loaded(operator: Operator) -> set[str]:
    """Returns the models in memory."""
    return {name for name, model in operator.all().items() if model["state"] == "loaded"}


def device_memory(operator: Operator) -> machine_service_pb2.Device:
    """Waits for a sample of the machine's memory with a GPU."""
    with grpc.insecure_channel(operator.stack.grpc_address) as channel:
        stub = machine_service_pb2_grpc.MachineServiceStub(channel)
        for event in stub.WatchMachine(machine_service_pb2.WatchMachineRequest(), timeout=PATIENCE_SECONDS):
            for host in event.sample.hosts:
                if host.devices:
                    return host.devices[0]
    raise AssertionError("no sample names a GPU")


async def test_the_software_device_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
    found = await llama_devices()
    device = found.first("vulkan")
    assert device, found
    assert device.name == DEVICE
    assert "llvmpipe" in device.description
    assert 0 < device.free <= device.total
    assert "vulkan" in found.version


def test_the_service_moves_to_the_gpu_and_says_so(operator: Operator, on_the_processor: list[Any]) -> None:
    output = (operator.stack.home / "output.txt").read_text()
    assert MOVES.format(kind="vulkan") in output
    assert "text ended" not in output, "a wanted restart is no crash"


def test_tokens_equal_the_processors(operator: Operator, on_the_processor: list[Any]) -> None:
    offloaded = most_likely(operator)
    assert [token for token, _ in offloaded] == [token for token, _ in on_the_processor]
    assert [logprob for _, logprob in offloaded] == pytest.approx([each for _, each in on_the_processor], abs=0.05)


def test_its_memory_is_read(operator: Operator, on_the_processor: list[Any]) -> None:
    memory = device_memory(operator)
    assert memory.name == DEVICE
    assert memory.total_bytes > ROOM


def test_a_real_model_answers_and_the_other_one_leaves(operator: Operator, on_the_processor: list[Any]) -> None:
    assert loaded(operator) == {SMALL}
    assert continuation(operator, MODEL, max_tokens=2)["text"] == " Paris."
    operator.until(lambda: loaded(operator) == {MODEL})
    assert replica(operator, MODEL)["device"] == "vulkan"
    assert replica(operator, MODEL)["memory"]["reserved_bytes"] > demo_model().stat().st_size


def test_the_choice_is_explained(operator: Operator, on_the_processor: list[Any]) -> None:
    command = [sys.executable, "-m", "services.cli", "models", "why", MODEL, "--json"]
    environ = environment(operator.stack.home, ALLM_PORT=str(operator.stack.port))
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert '"device": "vulkan"' in done.stdout


def test_a_model_that_is_larger_than_the_device_is_refused(operator: Operator, on_the_processor: list[Any]) -> None:
    before = loaded(operator)
    reply = operator.chat(LARGE)
    assert reply.status == 503
    assert DEVICE in reply.error["message"]
    assert loaded(operator) == before, "nothing was unloaded for it"


def test_a_killed_worker_gives_its_memory_back(operator: Operator, on_the_processor: list[Any]) -> None:
    assert loaded(operator) == {MODEL}
    (worker,) = workers(operator.stack)
    worker.send_signal(signal.SIGKILL)
    operator.until(lambda: loaded(operator) == set())
    found = most_likely(operator)  # beside the dead one's memory the model would not fit
    assert [token for token, _ in found] == [token for token, _ in on_the_processor]
    assert loaded(operator) == {SMALL}
