"""What is vLLM's alone: divided models, its memory, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.models.descriptor import describe
from services.models.formats.inspect import inspect
from services.models.hub.source_tree import LocalTree
from services.models.registry import RUNTIMES
from services.settings.settings import MIB, load_settings
from services.text.engine.messages import EngineOptions
from services.text.memory_estimate import TextNeed
from tests.demo_model import demo_safetensors
from tests.text.engine.worker_session import SECONDS, VLLM_PYTHON, WorkerSession
from tests.text.families.published_configs import LLAMA_32
from tests.text.families.random_models import write_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FACTOR = 1.5  # what it takes and is said to need; how requests meet in a batch is chance
PROMPT = [5, 17, 90, 33, 120, 7]
IDLE = """
import os, re
import services.text.engine.__main__, services.text.engine.runtimes.vllm.loop
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, eight heads over two key heads, of a size that vLLM has kernels for."""
    return write_model(tmp_path_factory.mktemp("tiny"), {**LLAMA_32, "head_dim": 32})


@pytest.fixture(scope="module")
def small() -> Iterator[WorkerSession]:
    """Fewer cells than eight requests come to need."""
    with WorkerSession("vllm", demo_safetensors(), context_tokens=512, kv_tokens=512) as worker:
        yield worker


def test_requests_that_outgrow_the_cache_start_over_and_still_end_whole(small: WorkerSession) -> None:
    numbers = [small.ask(f"Tell me story number {n}.", max_tokens=120, ignore_eos=True) for n in range(8)]
    for number in numbers:
        assert small.finish(number).tokens == 120
    counters = small.idle()
    assert counters.preempted > 0
    assert counters.active_cells == 0
    assert any("queue" in small.answers[number].phases for number in numbers)


def test_it_takes_what_it_is_said_to_need(small: WorkerSession) -> None:
    words = [small.ask(f"{number} " + "word " * 400, client=str(number), max_tokens=4) for number in range(8)]
    for number in words:
        small.finish(number)
    bare = _peak(subprocess.run([VLLM_PYTHON, "-c", IDLE], capture_output=True, text=True, check=True).stdout)
    above = _peak(_status(small.process.pid)) - bare
    need = _needed(small.options)
    said = need.total - need.parts["worker"] - need.parts["templates"]
    figures = f"needs {said / MIB:.0f} MiB, took {above / MIB:.0f} above a worker of {bare / MIB:.0f}: {need}"
    assert min(need.parts.values()) > 0
    assert need.total == sum(need.parts.values())
    assert said / FACTOR <= above <= FACTOR * said, figures
    assert need.parts["worker"] / FACTOR <= bare <= FACTOR * need.parts["worker"], figures


def test_two_processes_answer_like_one_and_end_together(tiny: Path) -> None:
    given = {"context_tokens": 256, "kv_tokens": 512, "dtype": "float32", "threads": 1}
    with WorkerSession("vllm", tiny, **given) as one:
        assert one.ready, one.failed
        alone = one.finish(one.submit(PROMPT, ignore_eos=True, special=True))
    with WorkerSession("vllm", tiny, tensor_parallel=2, **given) as two:
        assert two.ready, two.failed
        divided = two.finish(two.submit(PROMPT, ignore_eos=True, special=True))
        assert divided.text == alone.text
        assert divided.tokens == alone.tokens == 24
        ranks = psutil.Process(two.process.pid).children(recursive=True)
        # One of them dies: the worker must not wait for it for ever, and takes the others along.
        victim = max(ranks, key=lambda each: each.memory_info().rss)
        two.submit(PROMPT, max_tokens=200, ignore_eos=True)
        victim.send_signal(signal.SIGKILL)
        assert two.process.wait(SECONDS) != 0
        _, left = psutil.wait_procs(ranks, SECONDS)
        assert not left


def test_without_a_compiler_it_makes_logprobs_all_the_same(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lscpu").symlink_to(str(shutil.which("lscpu")))  # vLLM asks it about the processors
    monkeypatch.setenv("PATH", str(tmp_path))
    with WorkerSession("vllm", tiny, compiled=True) as worker:
        assert worker.ready, worker.failed
        answer = worker.finish(worker.submit(PROMPT, max_tokens=3, ignore_eos=True, logprobs=2))
        assert answer.tokens == 3
        assert {len(each.top) for each in answer.logprobs} == {2}


def test_a_broken_file_is_named(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(tiny, folder)
    (weights,) = folder.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    with WorkerSession("vllm", folder, context_tokens=256) as worker:
        assert worker.failed is not None
        assert worker.failed.code == "MODEL_INVALID"
        assert folder.name in worker.failed.message


def test_a_model_that_it_has_no_kernels_for_is_refused_in_words(tmp_path: Path) -> None:
    with WorkerSession("vllm", write_model(tmp_path / "narrow", LLAMA_32), context_tokens=256) as worker:
        assert worker.failed is not None
        assert worker.failed.code == "UNSUPPORTED"
        assert "head_dim=16" in worker.failed.message


def test_an_architecture_that_it_does_not_know_is_refused(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "unknown"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["NobodyForCausalLM"]}))
    with WorkerSession("vllm", folder, context_tokens=256) as worker:
        assert worker.failed is not None
        assert worker.failed.code == "UNSUPPORTED"
        assert "NobodyForCausalLM" in worker.failed.message


def _status(pid: int) -> str:
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return found[1]


def _peak(kib: str) -> int:
    return int(kib.rsplit(maxsplit=1)[-1]) * 1024


def _needed(options: EngineOptions):
    tree = LocalTree(demo_safetensors(), [demo_safetensors()])
    finding = inspect(tree, "safetensors", "")
    descriptor = describe(finding.facts("demo"), 1, finding.manifest(tree), demo_safetensors())
    runtime = next(each for each in RUNTIMES if each.name == "vllm")
    settings = load_settings({"ALLM_HOME": os.devnull}).text
    return TextNeed(settings, "cpu", lambda _: options)(descriptor, runtime)
