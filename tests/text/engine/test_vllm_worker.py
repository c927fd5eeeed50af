"""The vllm runtime's own behaviour: divided models, memory, refusals and shutdown."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from services.models.descriptor import describe
from services.models.formats.inspect import inspect
from services.models.hub.source import LocalTree
from services.models.runtimes import RUNTIMES
from services.settings.modality_settings import MIB
from services.settings.settings import load_settings
from services.text.engine.messages import EngineOptions
from services.text.memory_estimate import TextMemoryEstimate
from tests.demo_model import demo_safetensors
from tests.text.engine.worker_session import SECONDS, VLLM_PYTHON, WorkerSession, engine_options, worker_environ
from tests.text.families.published_configs import LLAMA_32
from tests.text.families.random_models import write_model

pytestmark = pytest.mark.slow

FACTOR = 1.5  # tolerance between used and estimated memory; how requests meet in a batch is chance
PROMPT = [5, 17, 90, 33, 120, 7]
DIVISIBLE = {"context_tokens": 256, "kv_tokens": 512, "dtype": "float32", "threads": 1}
# Prints the memory of a process that has only imported the runtime, then the runtime's error for each model.
REFUSED = """
import re, sys
import msgspec
import services.text.engine.__main__, services.text.engine.runtimes.vllm.model
from services.worker.messages import EngineError
from services.text.engine.messages import EngineOptions
from services.text.engine.runtimes.vllm.model import VllmModel
reported = [int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])]
for options in [msgspec.json.decode(each, type=EngineOptions) for each in sys.argv[1:]]:
    try:
        VllmModel(options, print).pace(options)
    except EngineError as error:
        reported.append([error.code, error.message])
print(msgspec.json.encode(reported).decode())
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights and eight heads over two key heads, of a size that vLLM has kernels for."""
    return write_model(tmp_path_factory.mktemp("tiny"), {**LLAMA_32, "head_dim": 32})


@pytest.fixture(scope="module")
def refused(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Output of REFUSED for an unknown, a narrow and a broken model. Its process must end by itself."""
    narrow = write_model(tmp_path_factory.mktemp("narrow"), LLAMA_32)
    unknown, broken = (shutil.copytree(tiny, tmp_path_factory.mktemp(name) / name) for name in ("unknown", "broken"))
    config = json.loads((unknown / "config.json").read_text())
    (unknown / "config.json").write_text(json.dumps(config | {"architectures": ["NobodyForCausalLM"]}))
    (weights,) = broken.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    options = [engine_options(folder, context_tokens=256) for folder in (unknown, narrow, broken)]
    done = subprocess.run(
        [VLLM_PYTHON, "-c", REFUSED, *(msgspec.json.encode(each).decode() for each in options)],
        env={**os.environ, **worker_environ("vllm", options[0])},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=2 * SECONDS,
    )
    reported: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return reported


@pytest.fixture(scope="module")
def uncompiled(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerSession]:
    """A worker with compilation switched on and no compiler on its PATH."""
    folder = tmp_path_factory.mktemp("path")
    (folder / "lscpu").symlink_to(str(shutil.which("lscpu")))  # vLLM calls it for the processor topology
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder))
        worker = WorkerSession("vllm", tiny, compiled=True, **DIVISIBLE)
    with worker:
        assert worker.ready, worker.failed
        yield worker


@pytest.fixture(scope="module")
def small() -> Iterator[WorkerSession]:
    """A worker with fewer KV cells than eight requests need."""
    with WorkerSession("vllm", demo_safetensors(), context_tokens=512, kv_tokens=512) as worker:
        yield worker


def test_requests_that_outgrow_the_cache_start_over_and_still_end_whole(small: WorkerSession) -> None:
    # Each request needs two blocks of 32 cells at its start and four at its end; the cache has 24 blocks.
    numbers = [small.ask(f"{n} " + "word " * 50, max_tokens=60, ignore_eos=True) for n in range(8)]
    for number in numbers:
        assert small.finish(number).tokens == 60
    counters = small.idle()
    assert counters.preempted > 0
    assert counters.active_cells == 0
    assert any("queue" in small.answers[number].phases for number in numbers)


def test_it_takes_what_it_is_said_to_need(small: WorkerSession, refused: list[Any]) -> None:
    words = [small.ask(f"{number} " + "word " * 400, client=str(number), max_tokens=4) for number in range(3)]
    for number in words:
        small.finish(number)
    bare = refused[0] * 1024
    above = _peak(small.process.pid) - bare
    need = _needed(small.options)
    said = need.total - need.parts["worker"] - need.parts["templates"]
    figures = f"needs {said / MIB:.0f} MiB, took {above / MIB:.0f} above a worker of {bare / MIB:.0f}: {need}"
    assert min(need.parts.values()) > 0
    assert need.total == sum(need.parts.values())
    assert said / FACTOR <= above <= FACTOR * said, figures
    assert need.parts["worker"] / FACTOR <= bare <= FACTOR * need.parts["worker"], figures


def test_two_processes_answer_like_one_and_end_together(tiny: Path, uncompiled: WorkerSession) -> None:
    alone = uncompiled.finish(uncompiled.submit(PROMPT, ignore_eos=True, special=True))
    with WorkerSession("vllm", tiny, tensor_parallel=2, **DIVISIBLE) as two:
        assert two.ready, two.failed
        divided = two.finish(two.submit(PROMPT, ignore_eos=True, special=True))
        assert divided.text == alone.text
        assert divided.tokens == alone.tokens == 24
        ranks = psutil.Process(two.process.pid).children(recursive=True)
        # One rank dies: the worker must not wait for it forever, and must end the other ranks.
        victim = max(ranks, key=lambda each: each.memory_info().rss)
        two.submit(PROMPT, max_tokens=200, ignore_eos=True)
        victim.send_signal(signal.SIGKILL)
        assert two.process.wait(SECONDS) != 0
        _, left = psutil.wait_procs(ranks, SECONDS)
        assert not left


def test_without_a_compiler_it_makes_logprobs_all_the_same(uncompiled: WorkerSession) -> None:
    answer = uncompiled.finish(uncompiled.submit(PROMPT, max_tokens=3, ignore_eos=True, logprobs=2))
    assert answer.tokens == 3
    assert {len(each.top) for each in answer.logprobs} == {2}


def test_models_that_it_cannot_load_are_refused_in_words(refused: list[Any]) -> None:
    _, unknown, narrow, broken = refused
    assert unknown[0] == narrow[0] == "UNSUPPORTED"
    assert "NobodyForCausalLM" in unknown[1]
    assert "head_dim=16" in narrow[1]
    assert broken[0] == "MODEL_INVALID"
    assert "broken" in broken[1]


def _peak(pid: int) -> int:
    """Returns the peak memory of a process in bytes."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def _needed(options: EngineOptions):
    tree = LocalTree(demo_safetensors(), [demo_safetensors()])
    finding = inspect(tree, "safetensors", "")
    descriptor = describe(finding.facts("demo"), 1, finding.manifest(tree), demo_safetensors())
    runtime = next(each for each in RUNTIMES if each.name == "vllm")
    settings = load_settings({"ALLM_HOME": os.devnull}).text
    return TextMemoryEstimate(settings, lambda *_: options)(descriptor, runtime)
